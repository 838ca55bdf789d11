"""Figures: pure functions from frames or arrays to Plotly figures, one file for each subject.

No store, no SQL and no Dash: the offline report, the dashboard and a notebook draw the same ones.
"""
