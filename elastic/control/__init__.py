"""Pure. The deciding half: observations in, decisions out; no clock, no chance, no files, no ray, no torch."""
