"""Grams of CO2e and money of energy: a site's settings, intensities by zone and hour, and where each figure is from."""
