"""Effect. What replicas say of themselves beside the gradients, and what follows: votes, and second looks at losses.

All replicas see the same table and judge it by the same pure functions, so they agree without another word. The
controller is told only of what it must act on.
"""

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from elastic.control.data import even
from elastic.control.flight import Flying
from elastic.control.integrity import (
    WORDS,
    Account,
    LossVerdict,
    accounts,
    is_vote_due,
    judge_losses,
    outvoted,
    table,
)
from elastic.control.speed import balance, by_replica, smooth
from elastic.errors import AttemptBroken, NonFiniteLossError
from elastic.train import tree

if TYPE_CHECKING:
    from elastic.train.replica import Replica

_REDEAL_STEPS = 10


class Watch:
    """One replica's eye on all of them.

    Args:
        digest_steps: the digest of all tracked state is compared every so many updates, and at the end; 0: never;
            None: when `is_vote_due` says so by the leader's clock, whose word travels with the reduction before.
    """

    def __init__(self, replica: "Replica", digest_steps: int | None = None) -> None:
        self.digest_steps = digest_steps
        self._voted_s, self._took_s = -math.inf, 0.0
        self._replica = replica
        self._first: Sequence[Account] = ()
        self._first_place = (0, -1)
        self._disputed: tuple[int, dict[str, int]] = (-1, {})  # the last tie: its step, and what each worker held
        self._measured_in = 0  # the generation that `seconds` and `_shares` belong to
        self._seconds: tuple[float, ...] = ()
        self._of_replicas: tuple[float, ...] = ()
        self._shares: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Numbers in the table."""
        return self._replica.replicas * WORDS

    def attempt_of(self, step: int) -> int:
        """1, or 2 where the first attempt of this generation has shown a loss that must be looked at again."""
        return 2 if self._first_place == (self._replica.generation, step) else 1

    def digest_before(self, step: int) -> int:
        """64 bits over all tracked state at the door of a step, 0 where no vote is due."""
        every = self.digest_steps
        is_due = self._replica.cursor.is_compared if every is None else every > 0 and step > 0 and step % every == 0
        return self.digest() if is_due else 0

    def vote(self, step: int, now_s: float) -> float:
        """Above 0: states are to be compared after this step; a tie that was gone back from is, whoever leads."""
        if self.digest_steps is not None:
            return 0.0
        is_leader = not self._replica.rank and not self._replica.shard
        is_due = is_leader and is_vote_due(step + 1, now_s - self._voted_s, self._took_s)
        return float(is_due or step + 1 == self._disputed[0])

    def digest(self) -> int:
        """64 bits over all tracked state now, unless nobody compares them."""
        if self.digest_steps == 0 or self._replica.replicas == 1:
            return 0
        began_s = time.monotonic()
        with self._replica.page.during(Flying.SLOW, "reading all state for a vote"):
            digest = tree.digest(self._replica.tracked.flatten())
        self._voted_s = time.monotonic()
        self._took_s = self._voted_s - began_s
        return digest

    def table(self, mine: Account) -> torch.Tensor:
        """(size,) float64, to be summed over replicas."""
        return torch.tensor(table(mine, self._replica.rank, self._replica.replicas), dtype=torch.float64)

    def check(self, step: int, attempt: int, rows: torch.Tensor, *, is_skipped: bool) -> bool:
        """Judge the summed table of an attempt whose reduction has completed; losses of a skipped step do not matter.

        Returns:
            Whether all replicas have shown that they hold the same bits.

        Raises:
            AttemptBroken: (a signal) some replica is corrupt, or the step must be looked at again.
            NonFiniteLossError: the loss is not finite, and no replica is to blame.
        """
        told = accounts(rows.tolist())
        voted = self._check_digests(step, [account.digest for account in told])
        if not is_skipped:
            self._check_losses(step, attempt, told)
            self._note_speed(told)
        return voted

    @property
    def seconds(self) -> tuple[float, ...]:
        """Smoothed time of a micro-batch in this generation, by replica, on workers of this shard; empty at first."""
        return self._seconds if self._measured_in == self._replica.generation else ()

    @property
    def microseconds(self) -> list[int]:
        """The same, to be told to the workers of this replica; 0 where nothing is known."""
        known = self.seconds or (0.0,) * self._replica.replicas
        return [round(1e6 * one) for one in known]

    def learn(self, figures: Sequence[Sequence[int]]) -> tuple[float, ...]:
        """How long a replica takes, from `microseconds` of all shards: the same for all workers of all replicas.

        Returns:
            Smoothed time of a micro-batch in seconds, by rank of the worker.
        """
        seconds = [[one / 1e6 for one in row] for row in figures]
        self._of_replicas = by_replica(seconds)
        return tuple(one for replica in zip(*seconds, strict=True) for one in replica)

    def shares(self, step: int, micro_batches: int) -> tuple[int, ...]:
        """How a step is dealt: evenly, or, where the policy asked for it, by the speed of this generation's members.

        It changes every few steps only, and by figures that came with a reduction: so all replicas change it alike.

        Args:
            micro_batches: of a whole step, for which the shares are made; a short one is dealt in their proportion.
        """
        replica = self._replica
        seconds = self.seconds if replica.width == 1 else self._of_replicas
        if replica.view is None or not replica.view.balanced or not self.seconds or len(seconds) != replica.replicas:
            return even(replica.replicas)
        if not self._shares or step % _REDEAL_STEPS == 0:
            self._shares = balance(micro_batches, seconds)
        return self._shares

    def _note_speed(self, told: Sequence[Account]) -> None:
        if self._measured_in != self._replica.generation:
            self._measured_in, self._seconds, self._shares = self._replica.generation, (), ()
            self._of_replicas = ()
        self._seconds = smooth(self._seconds, told)

    def _check_digests(self, step: int, digests: list[int]) -> bool:
        odd = outvoted(digests)
        if odd == ():
            self._settle_dispute(step, digests[0])
            return len(digests) > 1 and digests[0] != 0
        held = ", ".join(f"{digest:016x} on {name}" for digest, name in zip(digests, self._names, strict=True))
        if odd is None:
            self._disputed = step, dict(zip(self._names, digests, strict=True))
            self._report(
                (),
                f"replicas hold different bits after step {step - 1}, and no more than half agree: {held}; nobody can "
                "say whose are right: use three replicas or more, or track only what is the same on all replicas",
            )
        else:
            self._report(odd, f"{self._named(odd)} outvoted on the state after step {step - 1}: {held}")
        raise AttemptBroken

    def _settle_dispute(self, step: int, digest: int) -> None:
        """The steps before a tie were done again, from a step on which all had agreed: now it shows who was right.

        Nobody is blamed where the second time led to what nobody had held: what the corrupt one computed from its bits
        before the vote was summed by all, or the training is not deterministic.
        """
        disputed, held = self._disputed
        if disputed != step or not digest:
            return
        self._disputed = -1, {}
        wrong = tuple(rank for rank, name in enumerate(self._names) if held.get(name, digest) != digest)
        if wrong and digest in held.values():
            self._report(
                wrong,
                f"{self._named(wrong)} held other bits after step {step - 1} than the same steps have led to when they "
                f"were done again: {digest:016x}",
            )
            raise AttemptBroken

    def _check_losses(self, step: int, attempt: int, told: Sequence[Account]) -> None:
        first, second = (self._first, told) if attempt > 1 else (told, ())
        verdict, culprits = judge_losses(first, second)
        if self._replica.any_inside(verdict is LossVerdict.LOOK_AGAIN, "losses", step):
            self._first, self._first_place = told, (self._replica.generation, step)
            raise AttemptBroken
        where = {name: account.odd - 1 for name, account in zip(self._names, first, strict=True) if account.odd}
        if verdict is LossVerdict.REPLICA:
            self._report(
                culprits,
                f"the loss of step {step} was not finite on {self._named(culprits)} "
                f"(micro-batch by worker: {where}), and finite where another computed the same",
            )
            raise AttemptBroken
        is_dropped = any(scaler.is_enabled() for scaler in self._replica.scalers)
        if verdict is LossVerdict.USER and not is_dropped:
            raise NonFiniteLossError(
                f"the loss of step {step} is not finite (micro-batch by worker: {where}), and no single replica is to "
                "blame: it is the model's or the data's; lower the learning rate, clip, use a GradScaler, or drop such "
                "a step with step.skip(reason) before its backward"
            )

    def _report(self, culprits: tuple[int, ...], evidence: str) -> None:
        self._replica.link.corrupt(tuple(self._names[rank] for rank in culprits), evidence)

    def _named(self, ranks: tuple[int, ...]) -> str:
        return ", ".join(f"{self._names[rank]} (rank {rank})" for rank in ranks)

    @property
    def _names(self) -> list[str]:
        group = self._replica.group
        return [member.worker for member in group.view.members] if group is not None else [self._replica.link.worker]
