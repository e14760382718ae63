"""moeplan plans, simulates and runs the training of Mixture-of-Experts language models."""

from __future__ import annotations

__version__ = "0.1.0"
