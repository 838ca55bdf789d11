"""Figures and pages: pure functions from frames and outcomes to Plotly figures, and pages that need no network."""
