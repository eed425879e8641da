"""Effect. The tracked objects: installed state is bit for bit the given one, in the live tensors wherever they fit."""

import copy

import pytest
import torch
from torch import nn

from elastic.errors import NotStatefulError, StepMisuseError
from elastic.train import tree
from elastic.train.tracked import Tracked
from elastic.train.tree import Flat

LR = 0.1


class Net(nn.Module):
    """Has a tied weight, a buffer of statistics, and parameters of two dtypes."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.coarse = nn.Linear(3, 1).bfloat16()
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.coarse(self.norm(self.b(torch.tanh(self.a(x)))).bfloat16()).float()


class Objects:
    def __init__(self, seed, steps, optimizer=torch.optim.AdamW):
        torch.manual_seed(seed)
        self.model = Net()
        self.optimizer = optimizer(self.model.parameters(), lr=LR)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)
        self.tracked = Tracked()
        self.tracked.add({"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler})
        for _ in range(steps):
            self.train()

    def train(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 3)).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()

    def give(self) -> Flat:
        """The state as it arrives at another worker: other memory, the same bits."""
        flat = self.tracked.flatten()
        return Flat(flat.skeleton, [t.clone() for t in flat.tensors])


def tensors_of(state):
    return {(i, k): v for i, entries in state.items() for k, v in entries.items() if isinstance(v, torch.Tensor)}


def test_two_objects_of_one_name_are_refused():
    """The second would take the place of the first, which then reached no joiner."""
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    tracked = Tracked()
    tracked.add({"average": first})
    tracked.add({"average": first})
    with pytest.raises(StepMisuseError, match=r"session\.track\(average=.*a name of its own"):
        tracked.add({"average": second})


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["joiner", "late", "as far"])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD])
def test_installed_state_is_the_given_one(optimizer, steps):
    """By digest, and by what training on from it gives."""
    giver, taker = Objects(1, 3, optimizer), Objects(2, steps, optimizer)
    assert taker.tracked.digests() != giver.tracked.digests()
    flat = giver.give()
    taker.tracked.install(flat.skeleton, flat.tensors)
    assert taker.tracked.digests() == giver.tracked.digests()
    for objects in (giver, taker):
        torch.manual_seed(9)
        objects.train()
    assert taker.tracked.digests() == giver.tracked.digests()


def test_where_the_trees_fit_every_tensor_keeps_its_identity():
    """The optimizer, the reducer's hooks and the user's references stay with the objects that train."""
    giver, taker = Objects(1, 3), Objects(2, 2)
    state = taker.optimizer.state
    before = {
        "parameters": [(id(p), p.data_ptr()) for p in taker.model.parameters()],
        "buffers": [(id(b), b.data_ptr()) for b in taker.model.buffers()],
        "moments": {k: (id(v), v.data_ptr()) for k, v in tensors_of(state).items()},
        "state": {p: id(entries) for p, entries in state.items()},
    }
    flat = giver.give()
    taker.tracked.install(flat.skeleton, flat.tensors)
    assert before == {
        "parameters": [(id(p), p.data_ptr()) for p in taker.model.parameters()],
        "buffers": [(id(b), b.data_ptr()) for b in taker.model.buffers()],
        "moments": {k: (id(v), v.data_ptr()) for k, v in tensors_of(state).items()},
        "state": {p: id(entries) for p, entries in state.items()},
    }


def test_a_joiners_parameters_keep_their_identity():
    """Though its optimizer has no state yet."""
    giver, taker = Objects(1, 3), Objects(2, 0)
    before = [(id(p), p.data_ptr()) for p in taker.model.parameters()]
    flat = giver.give()
    taker.tracked.install(flat.skeleton, flat.tensors)
    assert [(id(p), p.data_ptr()) for p in taker.model.parameters()] == before
    assert set(taker.optimizer.state) == set(taker.model.parameters())


class Precise(torch.optim.SGD):
    """Keeps float32 moments of bfloat16 parameters."""

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            moment = self.state[p].setdefault("moment", torch.zeros_like(p, dtype=torch.float32))
            moment.add_(p.grad.float(), alpha=1 / 3)
            p.data.add_(moment, alpha=-LR)


class Halving(torch.optim.AdamW):
    """Takes over what it likes."""

    def load_state_dict(self, state):
        super().load_state_dict(state)
        for entries in self.state.values():
            entries["exp_avg"].mul_(0.5)


def rounding(optimizer):
    for entries in optimizer.state.values():
        entries["exp_avg"] = entries["exp_avg"].round()


def test_a_joiners_optimizer_that_keeps_what_it_was_given_need_not_be_read_again():
    given = Objects(1, steps=2)
    assert Objects(2, steps=0).tracked.install(*parts(given)) == ["scheduler"]
    assert Objects(2, steps=0, optimizer=Halving).tracked.install(*parts(given)) == ["optimizer", "scheduler"]
    hooked = Objects(2, steps=0)
    hooked.optimizer.register_load_state_dict_post_hook(rounding)
    assert hooked.tracked.install(*parts(given)) == ["optimizer", "scheduler"]


def parts(given):
    flat = given.give()
    return flat.skeleton, flat.tensors


@pytest.mark.parametrize("steps", [0, 1], ids=["joiner", "survivor"])
def test_float32_moments_of_bfloat16_parameters_keep_all_their_bits(steps):
    """`load_state_dict` would cast them to the dtype of their parameter."""
    giver, taker = Objects(1, 3, Precise), Objects(2, steps, Precise)
    flat = giver.give()
    taker.tracked.install(flat.skeleton, flat.tensors)
    mine, theirs = (o.optimizer.state[o.model.coarse.weight]["moment"] for o in (taker, giver))
    assert mine.dtype == torch.float32
    assert torch.equal(mine, theirs) and not torch.equal(mine, mine.bfloat16().float())
    assert taker.tracked.digests() == giver.tracked.digests()


@pytest.mark.parametrize("steps", [0, 2], ids=["joiner", "survivor"])
def test_learning_rates_are_installed(steps):
    """What a scheduler or the user has made of them is part of the state."""
    giver, taker = Objects(1, 3), Objects(2, steps)
    giver.optimizer.param_groups[0].update(weight_decay=0.25, betas=(0.5, 0.75))
    flat = giver.give()
    taker.tracked.install(flat.skeleton, flat.tensors)
    (group,) = taker.optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (LR / 8, 0.25, (0.5, 0.75))
    assert group["params"] == list(taker.model.parameters())


SCHEDULERS = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "milestones": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5], 0.1),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, LR, total_steps=20),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda i: 1 / (i + 1)),
    "sequence": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=2), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        [2],
    ),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS.keys())
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step\\(\\)`:UserWarning")
def test_schedulers_go_on_where_the_given_one_stood(make):
    def objects(steps):
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=LR)
        scheduler = make(optimizer)
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
        tracked = Tracked()
        tracked.add({"optimizer": optimizer, "scheduler": scheduler})
        return optimizer, scheduler, tracked

    (optimizer, scheduler, given), (other, others_scheduler, taker) = objects(3), objects(0)
    flat = given.flatten()
    taker.install(flat.skeleton, [t.clone() for t in flat.tensors])
    rates = []
    for one, its_scheduler in ((optimizer, scheduler), (other, others_scheduler)):
        rates.append([])
        for _ in range(4):
            one.step()
            its_scheduler.step()
            rates[-1].append(one.param_groups[0]["lr"])
    assert rates[0] == rates[1] and len(set(rates[0])) > 1


def test_a_module_with_state_of_its_own_kind_is_loaded():
    """`get_extra_state` may hold more than tensors."""

    class Extra(nn.Linear):
        count = 0

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    giver, taker = Extra(2, 2), Extra(2, 2)
    giver.count = 5
    trackeds = Tracked(), Tracked()
    for tracked, model in zip(trackeds, (giver, taker), strict=True):
        tracked.add({"model": model})
    flat = trackeds[0].flatten()
    trackeds[1].install(flat.skeleton, [t.clone() for t in flat.tensors])
    assert taker.count == 5 and torch.equal(taker.weight, giver.weight)


class Copying(nn.Linear):
    """As one that keeps its checkpoints on the CPU."""

    def state_dict(self, *args, **kwargs):
        return {key: value.clone() for key, value in super().state_dict(*args, **kwargs).items()}


class Deriving(nn.Linear):
    """What it derives from its weights is made when they are loaded."""

    total = 0.0

    def load_state_dict(self, state, *args, **kwargs):
        loaded = super().load_state_dict(state, *args, **kwargs)
        self.total = self.weight.sum().item()
        return loaded


@pytest.mark.parametrize("kind", [Copying, Deriving])
def test_a_module_whose_state_is_not_its_memory_is_loaded_and_looked_at(kind):
    giver, taker = kind(2, 2), kind(2, 2)
    trackeds = Tracked(), Tracked()
    for tracked, model in zip(trackeds, (giver, taker), strict=True):
        tracked.add({"model": model})
    flat = trackeds[0].flatten()
    assert trackeds[1].install(flat.skeleton, [t.clone() for t in flat.tensors]) == ["model"]
    assert torch.equal(taker.weight, giver.weight)
    assert kind is Copying or taker.total == giver.weight.sum().item()


def test_what_is_lent_is_the_memory_of_modules_that_no_other_shares():
    """The same bytes would be received twice, or others between them, or by who reads what it holds while it is set."""

    class Own:
        def __init__(self, tensor):
            self.tensor = tensor

        def state_dict(self):
            return {"tensor": self.tensor}

        def load_state_dict(self, state):
            self.tensor.zero_().add_(state["tensor"])

    model = Net()
    model.coarse.register_buffer("turned", torch.zeros(4, 6).t())
    tracked = Tracked()
    tracked.add({"model": model, "copying": Copying(2, 2), "deriving": Deriving(2, 2), "own": Own(torch.ones(3))})
    tracked.add({"shared": Own(model.norm.weight.detach())})
    lent = tracked.lent()
    alone = {"a.bias", "b.bias", "norm.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert set(lent) == {f"/model/{name}" for name in alone | {"coarse.weight", "coarse.bias"}}
    assert all(tensor.data_ptr() == model.state_dict()[path[7:]].data_ptr() for path, tensor in lent.items())


class Counting(torch.optim.SGD):
    """Has state beside that of its parameters."""

    turns = 0

    def state_dict(self):
        return {**super().state_dict(), "turns": self.turns}

    def load_state_dict(self, state):
        self.turns = state["turns"]
        super().load_state_dict({key: value for key, value in state.items() if key != "turns"})


class Wrapping(torch.optim.SGD):
    """Has a state of another kind than torch's."""

    def state_dict(self):
        return {"inner": super().state_dict()}

    def load_state_dict(self, state):
        super().load_state_dict(state["inner"])


@pytest.mark.parametrize("kind", [Counting, Wrapping])
@pytest.mark.parametrize("steps", [0, 1], ids=["joiner", "survivor"])
def test_an_optimizer_with_state_of_its_own_kind_is_loaded_and_looked_at(kind, steps):
    giver, taker = Objects(1, 2, kind), Objects(2, steps, kind)
    giver.optimizer.turns = 7
    assert "optimizer" in taker.tracked.install(*parts(giver))
    assert taker.tracked.digests() == giver.tracked.digests()
    assert kind is Wrapping or taker.optimizer.turns == 7


def test_a_rate_that_is_a_tensor_keeps_its_identity():
    """A graph on a GPU reads it where it is."""
    giver, taker = (
        Objects(seed, 1, lambda params, lr: torch.optim.AdamW(params, lr=torch.tensor(lr))) for seed in (1, 2)
    )
    giver.optimizer.param_groups[0]["lr"].fill_(0.25)
    mine = taker.optimizer.param_groups[0]["lr"]
    taker.tracked.install(*parts(giver))
    assert taker.optimizer.param_groups[0]["lr"] is mine
    assert mine.item() == 0.25


def test_a_tensor_of_another_shape_is_refused():
    """It would be broadcast over the whole live tensor in silence."""

    def tracked(size):
        model = nn.Module()
        model.register_buffer("scale", torch.ones(size))
        result = Tracked()
        result.add({"model": model})
        return result

    flat = tracked(1).flatten()
    with pytest.raises(RuntimeError, match="size mismatch for scale"):
        tracked(3).install(flat.skeleton, flat.tensors)


def test_reading_the_state_copies_nothing():
    """A step's end must not cost a copy of the model."""
    objects = Objects(1, 1)
    pointers = {t.data_ptr() for t in objects.tracked.flatten().tensors}
    assert {p.data_ptr() for p in objects.model.parameters()} <= pointers


@pytest.mark.parametrize("thing", [3, "text", object(), [1], copy.copy])
def test_an_object_without_state_is_refused_by_name(thing):
    sentence = rf"session.track\(thing={type(thing).__name__}\(...\)\): it needs state_dict\(\) and load_state_dict\(\)"
    with pytest.raises(NotStatefulError, match=sentence):
        Tracked().add({"thing": thing})


def test_a_model_is_held_only_with_the_buffers_of_its_state():
    """A joiner would begin with statistics of its own, and changes would be added to them for good."""
    net, norm = nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False)
    model, tracked = nn.Sequential(net, norm), Tracked()
    tracked.add({"net": net})
    assert not tracked.holds(model)
    tracked.add({"norm": norm})
    assert tracked.holds(model)
    model.register_buffer("cache", torch.zeros(1), persistent=False)
    assert tracked.holds(model), "each process makes it for itself"


class Scheduled:
    """An optimizer whose rate follows one schedule after the other."""

    def __init__(self, steps):
        self.optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=LR)
        first = torch.optim.lr_scheduler.LinearLR(self.optimizer)
        then = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [1, 2])
        self.scheduler = torch.optim.lr_scheduler.SequentialLR(self.optimizer, [first, then], milestones=[2])
        self.tracked = Tracked()
        self.tracked.add({"optimizer": self.optimizer, "scheduler": self.scheduler})
        self.rates = [self.step() for _ in range(steps)]

    def step(self):
        self.optimizer.step()
        self.scheduler.step()
        return self.optimizer.param_groups[0]["lr"]


def test_a_schedule_within_a_schedule_goes_on_as_it_was():
    """Its milestones are a Counter, and who is given a plain dict instead fails when it comes to them."""
    giver, taker = Scheduled(1), Scheduled(0)
    flat = giver.tracked.flatten()
    taker.tracked.install(flat.skeleton, [tensor.clone() for tensor in flat.tensors])
    assert [taker.step() for _ in range(4)] == [giver.step() for _ in range(4)]


class Shadow:
    """Keeps what it is given, as averages of weights do."""

    def __init__(self, device):
        self.weights = {"of": [torch.ones(2, device=device)], "none": None}

    def state_dict(self):
        return self.weights

    def load_state_dict(self, state):
        self.weights = state


def test_what_is_kept_as_it_was_given_is_on_its_device():
    tracked, shadow = Tracked(), Shadow("meta")
    tracked.add({"shadow": shadow})
    given = tree.flatten({"shadow": {"of": [torch.zeros(2), torch.zeros(3)], "none": 1}})
    tracked.install(given.skeleton, given.tensors)
    (first, new), told = shadow.weights["of"], shadow.weights["none"]
    assert (first.device.type, new.device.type, told) == ("meta", "cpu", 1)


class Preconditioned(torch.optim.SGD):
    """Keeps float32 matrices of bfloat16 parameters in a list."""

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("factors", [torch.zeros(2, 2), torch.zeros(3)])[0].add_(1 / 3)


@pytest.mark.parametrize("steps", [0, 1], ids=["joiner", "late"])
def test_tensors_in_lists_of_an_optimizers_state_keep_their_bits(steps):
    def trained(steps):
        weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        optimizer, tracked = Preconditioned([weight], lr=LR), Tracked()
        tracked.add({"optimizer": optimizer})
        for _ in range(steps):
            optimizer.step()
        return tracked

    giver, taker = trained(2), trained(steps)
    flat = giver.flatten()
    taker.install(flat.skeleton, [tensor.clone() for tensor in flat.tensors])
    assert taker.digests() == giver.digests()


def test_an_optimizer_of_an_older_torch_is_taken_over():
    """Its groups lack what later versions know, and get it from torch."""
    giver, taker = Objects(1, steps=2), Objects(2, steps=0)
    state = giver.optimizer.state_dict()
    for group in state["param_groups"]:
        del group["decoupled_weight_decay"]
    flat = tree.flatten({"optimizer": state})
    assert taker.tracked.install(flat.skeleton, [tensor.clone() for tensor in flat.tensors]) == []
    mine, theirs = taker.optimizer.state_dict(), giver.optimizer.state_dict()
    assert tree.digest(tree.flatten({"of": mine["state"]})) == tree.digest(tree.flatten({"of": theirs["state"]}))
    assert all(group["decoupled_weight_decay"] for group in mine["param_groups"])
    late = Objects(3, steps=2)
    late.tracked.install(*parts(taker))
    assert late.tracked.digests(["optimizer"]) == taker.tracked.digests(["optimizer"])
