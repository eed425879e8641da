"""Measurements with a birth certificate: each is one command, and its file says what was measured on what."""
