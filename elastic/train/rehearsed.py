"""Effect. What a process imports from which workers are forked, so that they have nothing to import themselves."""

from elastic.train.rehearsal import rehearse

rehearse()
