"""Calibrations fitted to tables of measurements; nothing is measured here."""
