"""PPO at table tennis on a small screen: Python plays a fixed number of moves, then makes several epochs of clipped updates.

One of Janus' eleven programs (there on Atari's Pong): the environments are numpy, actions are drawn from values of the network, and the trainer keeps
the scores to show progress. An epoch that has taken the policy too far from the one that played is the last.
AutoGraph: fails ('SymbolicTensor' has no `numpy`).
"""

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.environments import Pong, entropy, log_probability, sample
from examples.programs.training import adam

SIZES = {
    "test": {"side": 8, "players": 2, "horizon": 4, "minibatch": 4, "epochs": 2, "filters": (4,), "units": 16},
    "benchmark": {"side": 16, "players": 8, "horizon": 8, "minibatch": 32, "epochs": 3, "filters": (8, 16), "units": 64},
    "paper": {"side": 84, "players": 8, "horizon": 128, "minibatch": 256, "epochs": 3, "filters": (32, 64, 64), "units": 512},
}
DISCOUNT, TRACE_DECAY, CLIP, FARTHEST = 0.95, 0.9, 0.2, 0.01
VALUE_WEIGHT, ENTROPY_WEIGHT = 1.0, 0.01


class ActorCritic(keras.Model):
    """One convolutional body with two heads."""

    def __init__(self, filters, units, actions):
        super().__init__()
        layers = [keras.layers.Conv2D(number, 3, strides=2, padding="same", activation="relu") for number in filters]
        self.body = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(units, activation="relu")])
        self.actor, self.critic = keras.layers.Dense(actions), keras.layers.Dense(1)

    def call(self, pictures):
        features = self.body(pictures)
        return self.actor(features), self.critic(features)[:, 0]


class Trainer:
    def __init__(self, seed, side, players, horizon, minibatch, epochs, filters, units):
        self.rng = np.random.default_rng(seed)
        self.tables = [Pong(self.rng, side) for _ in range(players)]
        self.pictures = np.stack([table.reset() for table in self.tables])
        self.horizon, self.minibatch, self.epochs = horizon, minibatch, epochs
        self.model = ActorCritic(filters, units, Pong.ACTIONS)
        self.model(self.pictures)
        self.optimizer = adam(self.model.trainable_variables, 3e-3)
        self.score, self.scores = np.zeros(players), []

    def move(self, actions):
        """One move at each table, and the next rally where one is over: pictures, rewards and ends."""
        pictures, rewards, ends = zip(*(table.step(action) for table, action in zip(self.tables, actions)))
        self.pictures = np.stack([table.reset() if end else picture for table, picture, end in zip(self.tables, pictures, ends)])
        self.score += rewards
        for player in np.flatnonzero(ends):
            self.scores.append(self.score[player])
            self.score[player] = 0.0
        return np.array(rewards, np.float32), np.array(ends, np.float32)

    def play(self):
        """`horizon` moves at all tables: pictures, actions, their log probabilities, values, rewards and ends, a row for each move."""
        rows = []
        for _ in range(self.horizon):
            pictures = self.pictures
            logits, values = self.model(tf.constant(pictures))
            actions = sample(self.rng, logits.numpy())
            rows.append((pictures, actions, log_probability(logits, actions).numpy(), values.numpy(), *self.move(actions)))
        return [np.stack(column) for column in zip(*rows)]

    def advantages(self, values, rewards, ends):
        """How much better each move went than the critic thought, with what it thinks of the following ones (generalised advantage estimation)."""
        next_values = self.model(tf.constant(self.pictures))[1].numpy()
        advantages, advantage = np.zeros_like(values), 0.0
        for moment in reversed(range(self.horizon)):
            going_on = 1.0 - ends[moment]
            surprise = rewards[moment] + DISCOUNT * going_on * next_values - values[moment]
            advantages[moment] = advantage = surprise + DISCOUNT * TRACE_DECAY * going_on * advantage
            next_values = values[moment]
        return advantages

    def update(self, pictures, actions, played, advantages, returns):
        """One update by a minibatch: the loss, and how far the policy is now from the one that played."""
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        with tf.GradientTape() as tape:
            logits, values = self.model(tf.constant(pictures))
            log_ratio = log_probability(logits, actions) - played
            ratio = tf.exp(log_ratio)
            policy_loss = -tf.reduce_mean(tf.minimum(ratio * advantages, tf.clip_by_value(ratio, 1.0 - CLIP, 1.0 + CLIP) * advantages))
            value_loss = tf.reduce_mean(tf.square(values - returns))
            loss = policy_loss + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy(logits)
        variables = self.model.trainable_variables
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.5)
        self.optimizer.apply_gradients(zip(gradients, variables))
        return loss, float(tf.reduce_mean(ratio - 1.0 - log_ratio))

    def train_step(self):
        pictures, actions, played, values, rewards, ends = self.play()
        advantages = self.advantages(values, rewards, ends)
        columns = (pictures, actions, played, advantages, advantages + values)
        columns = [column.reshape(-1, *column.shape[2:]) for column in columns]
        for _ in range(self.epochs):
            distances = []
            for rows in np.split(self.rng.permutation(len(columns[0])), len(columns[0]) // self.minibatch):
                loss, distance = self.update(*(column[rows] for column in columns))
                distances.append(distance)
            if np.mean(distances) > FARTHEST:
                break
        return loss


def build(seed, size="benchmark"):
    return Job(Trainer(seed, **SIZES[size]).train_step, [()])
