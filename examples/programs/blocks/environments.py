"""Reinforcement learning: worlds in numpy (a pole on a cart, table tennis on a small screen), and what is asked of a policy's logits."""

import numpy as np
import tensorflow as tf


class CartPole:
    """The pole that Barto, Sutton and Anderson balance on a cart, in Euler steps of 0.02 s; each step that it stands is worth 1."""

    OBSERVATION, ACTIONS = (4,), 2
    GRAVITY, CART, POLE, HALF_LENGTH, FORCE, STEP = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    WIDEST, STEEPEST, LONGEST = 2.4, np.radians(12), 200

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.state, self.moves = self.rng.uniform(-0.05, 0.05, 4), 0
        return self.state.astype(np.float32)

    def step(self, action):
        """What is seen after the action, the reward, and whether the episode is over."""
        place, speed, angle, turning = self.state
        sine, cosine, mass = np.sin(angle), np.cos(angle), self.CART + self.POLE
        push = ((self.FORCE if action else -self.FORCE) + self.POLE * self.HALF_LENGTH * turning**2 * sine) / mass
        tilt = (self.GRAVITY * sine - cosine * push) / (self.HALF_LENGTH * (4 / 3 - self.POLE * cosine**2 / mass))
        drive = push - self.POLE * self.HALF_LENGTH * tilt * cosine / mass
        self.state = self.state + self.STEP * np.array([speed, drive, turning, tilt])
        self.moves += 1
        fallen = abs(self.state[0]) > self.WIDEST or abs(self.state[2]) > self.STEEPEST
        return self.state.astype(np.float32), 1.0, bool(fallen or self.moves == self.LONGEST)


class Pong:
    """Table tennis for one player against a wall: a rally is over when the ball gets past the paddle.

    Hitting the ball is worth 1, missing it -1. What is seen is a picture of the table now, and one of how it was a step ago.
    """

    ACTIONS = 3  # stay, up, down

    def __init__(self, rng, side=16, reach=2):
        self.rng, self.side, self.reach = rng, side, reach

    def reset(self):
        self.paddle = self.side // 2
        self.ball = np.array([self.rng.uniform(1, self.side - 2), self.side / 2])
        self.velocity = np.array([self.rng.uniform(-1, 1), -1.0])
        self.before = self.picture()
        return np.stack([self.before, self.before], axis=-1)

    def picture(self):
        table = np.zeros((self.side, self.side), np.float32)
        row, column = np.clip(np.round(self.ball).astype(int), 0, self.side - 1)
        table[row, column] = 1.0
        table[max(self.paddle - self.reach, 0) : self.paddle + self.reach + 1, 0] = 1.0
        return table

    def step(self, action):
        """What is seen after the action, the reward, and whether the rally is over."""
        self.paddle = int(np.clip(self.paddle + (0, -1, 1)[action], 0, self.side - 1))
        self.ball += self.velocity
        edge = self.side - 1
        if not 0 <= self.ball[0] <= edge:
            self.velocity[0] *= -1
            self.ball[0] = np.clip(self.ball[0], 0, edge)
        reward, over = 0.0, False
        if self.ball[1] >= edge:
            self.velocity[1] = -1.0
        elif self.ball[1] <= 1:
            offset = self.ball[0] - self.paddle
            over = abs(offset) > self.reach + 0.5
            reward = -1.0 if over else 1.0
            # As in the arcades, where the paddle is hit decides where the ball goes.
            self.velocity[:] = np.clip(0.5 * offset, -1, 1), 1.0
        now, before = self.picture(), self.before
        self.before = now
        return np.stack([now, before], axis=-1), reward, over


def sample(rng, logits):
    """An action for each row, drawn in Python by Gumbel's trick."""
    return np.argmax(logits + rng.gumbel(size=logits.shape), axis=-1)


def log_probability(logits, actions):
    """That of the action taken, for each row."""
    return tf.gather(tf.nn.log_softmax(logits), actions, axis=1, batch_dims=1)


def entropy(logits):
    """The mean over the rows."""
    log_policy = tf.nn.log_softmax(logits)
    return -tf.reduce_mean(tf.reduce_sum(tf.exp(log_policy) * log_policy, axis=-1))
