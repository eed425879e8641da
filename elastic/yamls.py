"""Effect. What the loaders of YAML raise of a text that is none."""

import yaml

# Beside their own: of a day that no month has, and of tags, errors of Python's.
NO_YAML = (yaml.YAMLError, ValueError, AttributeError, LookupError)
