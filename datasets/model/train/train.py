"""Trains a model by a configuration file: python3 train.py --config tiny.json --out DIR

The schedule counts steps and every step has its own seed, so a run that is interrupted and
resumed from its checkpoint gives the same file.  Prints a log line every 50 steps.
"""
import argparse
import json
import math
import os
import random
import time

import torch
import torch.nn.functional as F

import model as llama
import objectives
from batches import Batch
from evaluate import quick_report
from grow import grow
from tasks import VOCAB
from tokenizer import PAD

LOG_EVERY, SAVE_EVERY, CHECK_EVERY = 50, 200, 400
PROBES = ("probe", "key_probe", "sum_probe", "operand_probe", "query_probe", "place_probe")
RULER_TASKS = ("niah_values", "niah_keys", "vt", "fwe")
EXTRA_LOSSES = PROBES + ("span",)  # see objectives.py


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--out", required=True, help="directory of the checkpoint")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


class Schedule:
    """Stages of steps.  The learning rate warms up and then follows a cosine over the whole run or
    as many steps as the rate says (with hold_first from the second stage on), or what the stage
    says: [first, last]."""

    def __init__(self, config):
        self.stages, self.starts, start = config["stages"], [], 0
        for stage in self.stages:
            self.starts.append(start)
            start += stage["steps"]
        self.steps = start
        self.rate = config["learning_rate"]

    def stage(self, step):
        """The stage of a step and how far in it the step is (0..1)."""
        i = max(i for i, start in enumerate(self.starts) if start <= step)
        return self.stages[i], (step - self.starts[i]) / self.stages[i]["steps"]

    def learning_rate(self, step):
        warm_up = min(1.0, (step + 1) / self.rate["warm_up"])
        stage, stage_done = self.stage(step)
        if "learning_rate" in stage:
            return warm_up * at(stage["learning_rate"], stage_done)
        decay_from = self.starts[1] if len(self.starts) > 1 and self.rate["hold_first"] else 0
        decay_to = self.rate.get("steps", self.steps)
        done = max(0.0, (step - decay_from) / (decay_to - decay_from))
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        rate = self.rate["last"] + (self.rate["peak"] - self.rate["last"]) * cosine
        return rate * warm_up


def token_losses(model, batch, unseen, **options):
    """Cross entropies and weights of all weighted tokens, and what the model returns besides.

    `unseen`: the padding token, which is never right, counts as often as there are tokens that
    training does not show, so that their rows in the exported file can be copies of its row.
    """
    with torch.autocast("cpu", torch.bfloat16):
        states, wanted, seen = model(batch.ids, batch.positions, batch.key_bias, **options)
        b, t = (batch.weights[:, 1:] > 0).nonzero(as_tuple=True)
        logits = model.head(states[b, t])
    logits = logits.float()
    if unseen:
        logits[:, PAD] += math.log(len(VOCAB.tokenizer.tokens) - VOCAB.size)
    losses = F.cross_entropy(logits, batch.ids[b, t + 1], reduction="none")
    return losses, batch.weights[b, t + 1], wanted, seen


class Trainer:
    def __init__(self, config, out):
        self.config, self.schedule = config, Schedule(config)
        torch.manual_seed(config["seed"])
        self.model = self._initial_model(out)
        dim = config["shape"]["dim"]
        self.probe = objectives.Probe(dim, config["probe"]["offsets"])
        self.key_probe = objectives.Probe(dim, config.get("key_probe", {"tokens": 1})["tokens"])
        self.sum_probe = objectives.Probe(dim, objectives.SUM_TOKENS)
        self.operand_probe = objectives.Probe(dim, objectives.OPERAND_TOKENS)
        self.query_probe = objectives.Probe(dim, 1 + objectives.QUERY_TOKENS)
        self.place_probe = objectives.Probe(dim, 1)
        self.parts = {"model": self.model, **{name: getattr(self, name) for name in PROBES}}
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.optimizer = self._make_optimizer()
        self.path = os.path.join(out, config["name"] + ".pt")
        if os.path.exists(self.path):
            self._resume()

    def _initial_model(self, out):
        shape, parent = self.config["shape"], self.config.get("parent")
        if parent is None:
            return llama.Model(shape, VOCAB.size)
        source, _ = llama.load(os.path.join(out, parent["name"] + ".pt"), VOCAB.size)
        return grow(source, parent["layers"], parent["noise"], VOCAB.size)

    def _make_optimizer(self):
        probes = [self.parts[name] for name in PROBES if name in self.config]
        matrices = [p for m in [self.model] + probes for p in m.parameters() if p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.dim() == 1]
        return torch.optim.AdamW(
            [{"params": matrices, "weight_decay": self.config["weight_decay"]},
             {"params": vectors, "weight_decay": 0.0}],
            lr=0.0, betas=(0.9, 0.97), eps=1e-9)

    def _resume(self):
        checkpoint = torch.load(self.path)
        for name, part in self.parts.items():
            part.load_state_dict(checkpoint[name])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.step, self.tokens = checkpoint["step"], checkpoint["tokens"]
        self.seconds = checkpoint["seconds"]

    def train_step(self):
        stage, done = self.schedule.stage(self.step)
        rng = random.Random("%s/%d" % (self.config["seed"], self.step))
        torch.manual_seed(self.config["seed"] * 1000003 + self.step)
        batch = Batch(rng, stage["batch"], stage["length"], stage["mix"], stage.get("longest", 0))
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate(self.step)

        loss, report = self._losses(batch, stage, done, rng)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        self.tokens += batch.ids.numel()
        return report

    def _losses(self, batch, stage, done, rng):
        """The weighted sum of all losses, and each one's value for the log."""
        config = self.config
        weight = {name: at(stage.get(name, [0, 0]), done) for name in EXTRA_LOSSES}
        options = {"key_dropout": stage.get("key_dropout", 0.0)}
        cases = objectives.choose_questions(batch.docs, rng) if weight["span"] > 0 else []
        if cases:
            options["rows"] = objectives.question_ends(cases)
            options["row_layers"] = rng.sample(config["span"]["layers"], 2)
        options["want"] = [config[name]["layer"] for name in PROBES if weight[name] > 0]
        losses, weights, wanted, seen = token_losses(
            self.model, batch, stage.get("unseen", False), **options)
        loss = (losses * weights).sum() / weights.sum()

        parts = {}
        if weight["probe"] > 0:
            parts["probe"] = objectives.previous_tokens_loss(
                self.probe, wanted[config["probe"]["layer"]], batch.ids, rng)
        if weight["key_probe"] > 0:
            parts["key_probe"] = objectives.key_loss(
                self.key_probe, wanted[config["key_probe"]["layer"]], batch.docs, rng,
                stage.get("key_by_answer", False))
        if weight["query_probe"] > 0:
            parts["query_probe"] = objectives.query_loss(
                self.query_probe, wanted[config["query_probe"]["layer"]], batch.docs, rng)
        if weight["place_probe"] > 0:
            parts["place_probe"] = objectives.place_loss(
                self.place_probe, wanted[config["place_probe"]["layer"]], batch.docs, rng,
                stage.get("place_starts", False))
        for name, what in (("sum_probe", "sum"), ("operand_probe", "operands")):
            if weight[name] > 0:
                parts[name] = objectives.sum_loss(
                    self.parts[name], wanted[config[name]["layer"]], batch.docs, rng, what)
        if cases:
            parts["span"] = objectives.span_loss(
                seen, cases, stage.get("span_mass", config["span"]["mass"]))
        parts = {name: part for name, part in parts.items() if part is not None}
        for name, part in parts.items():
            loss = loss + weight[name] * part

        answers = weights >= 1
        report = {"answer": losses[answers].mean().item(), "other": losses[~answers].mean().item()}
        report.update((name, part.item()) for name, part in parts.items())
        return loss, report

    def run(self):
        recent = []
        start = time.time() - self.seconds
        print("%d parameters, %d steps" % (
            sum(p.numel() for p in self.model.parameters()), self.schedule.steps), flush=True)
        while self.step < self.schedule.steps:
            recent.append(self.train_step())
            self.seconds = time.time() - start
            if self.step % LOG_EVERY == 0:
                self.log(recent)
                self.check_gate(recent)
                recent = []
            if self.step % SAVE_EVERY == 0 or self.step == self.schedule.steps:
                self.save()
            if self.step % CHECK_EVERY == 0 or self.step == self.schedule.steps:
                print("      " + quick_report(self.model, self._ruler_tasks()), flush=True)

    def _ruler_tasks(self):
        stage, _ = self.schedule.stage(self.step - 1)
        return RULER_TASKS if "niah" in stage["mix"] else ()

    def log(self, recent):
        stage, _ = self.schedule.stage(self.step - 1)
        parts = []
        for name in ("answer", "other") + EXTRA_LOSSES:
            values = [report[name] for report in recent if name in report]
            if values:
                parts.append("%s %.3f" % (name, mean(values)))
        print("%5d %5.0f s %6.2f Mtok T %4d  %s" % (
            self.step, self.seconds, self.tokens / 1e6, stage["length"], "  ".join(parts)),
            flush=True)

    def check_gate(self, recent):
        """Copying must have formed at the end of the stage with a gate, else a new seed is due."""
        stage, _ = self.schedule.stage(self.step - 1)
        last = self.step in self.schedule.starts
        loss = mean([r["answer"] for r in recent])
        if last and loss > stage.get("gate", math.inf):
            raise SystemExit("copy loss %.2f at step %d, want at most %.2f: use another seed"
                             % (loss, self.step, stage["gate"]))

    def save(self):
        temporary = self.path + ".new"
        llama.save(temporary, self.model, self.step, {
            "config": self.config, **{name: self.parts[name].state_dict() for name in PROBES},
            "optimizer": self.optimizer.state_dict(), "tokens": self.tokens,
            "seconds": self.seconds})
        os.replace(temporary, self.path)


def at(ends, done):
    """The value between two ends."""
    return ends[0] + (ends[1] - ends[0]) * done


def mean(values):
    return sum(values) / len(values)


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    with open(arguments.config, encoding="utf-8") as file:
        config = json.load(file)
    os.makedirs(arguments.out, exist_ok=True)
    Trainer(config, arguments.out).run()


if __name__ == "__main__":
    main()
