"""Seeded worlds that keep a journal: the lines that a driver would write, with steps that take their time."""

from elastic.sim.gangs import GangWorld
from elastic.sim.journalled import Journalled
from elastic.sim.succession import Succession
from elastic.sim.tiers import TierWorld
from elastic.sim.world import World


class JournalledWorld(Journalled, World):
    """Live replicas are all there is."""


class JournalledTiers(Journalled, TierWorld):
    """With checkpoints below them."""


class JournalledGangs(Journalled, GangWorld):
    """With replicas of several workers."""


class JournalledLives(Journalled, Succession, World):
    """With drivers that die."""
