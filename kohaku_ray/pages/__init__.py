"""Reporting: tables, plots, self-contained HTML pages."""
