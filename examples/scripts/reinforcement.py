"""REINFORCE on a pole that wants to fall: the environment is numpy, actions are sampled by numpy from the policy's output."""

import numpy as np
import tensorflow as tf


class CartPole:
    """The usual cart and pole, Euler steps of 0.02 s."""

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.state = self.rng.uniform(-0.05, 0.05, 4)
        return self.state.astype(np.float32)

    def step(self, action):
        x, v, angle, w = self.state
        force = 10.0 if action else -10.0
        sin, cos = np.sin(angle), np.cos(angle)
        push = (force + 0.05 * w * w * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        move = push - 0.05 * turn * cos / 1.1
        self.state = np.array([x + 0.02 * v, v + 0.02 * move, angle + 0.02 * w, w + 0.02 * turn])
        return self.state.astype(np.float32), abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


class Policy(tf.Module):
    def __init__(self):
        start = tf.random_normal_initializer(0.0, 0.3, seed=1)
        self.w1, self.b1 = tf.Variable(start((4, 24))), tf.Variable(tf.zeros(24))
        self.w2, self.b2 = tf.Variable(start((24, 2))), tf.Variable(tf.zeros(2))

    def __call__(self, states):
        return tf.tanh(states @ self.w1 + self.b1) @ self.w2 + self.b2


class Agent:
    def __init__(self, policy, rng, longest=60):
        self.policy, self.rng, self.longest = policy, rng, longest
        self.env = CartPole(rng)
        self.baseline = 0.0
        self.moments = [(tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for v in policy.trainable_variables]
        self.updates = 0

    def play(self):
        """One episode, padded to the longest: states, actions, returns."""
        states, actions = np.zeros((self.longest, 4), np.float32), np.zeros(self.longest, np.int64)
        state, length = self.env.reset(), 0
        for length in range(1, self.longest + 1):
            logits = self.policy(state[None]).numpy()[0]
            p = np.exp(logits - logits.max())
            action = self.rng.choice(2, p=p / p.sum())
            states[length - 1], actions[length - 1] = state, action
            state, fallen = self.env.step(action)
            if fallen:
                break
        returns = np.zeros(self.longest, np.float32)
        returns[:length] = np.arange(length, 0, -1)
        return states, actions, returns, length

    def learn(self, states, actions, returns, length):
        advantage = tf.constant((returns - self.baseline) * (returns > 0) / 20.0, tf.float32)
        with tf.GradientTape() as tape:
            log_p = tf.nn.log_softmax(self.policy(tf.constant(states)))
            chosen = tf.reduce_sum(log_p * tf.one_hot(actions, 2), -1)
            entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_p) * log_p, -1))
            loss = -tf.reduce_sum(chosen * advantage) / length - 0.01 * entropy
        variables = self.policy.trainable_variables
        self.updates += 1
        for v, g, (m, s) in zip(variables, tape.gradient(loss, variables), self.moments):
            m.assign(0.9 * m + 0.1 * g)
            s.assign(0.99 * s + 0.01 * g * g)
            v.assign_sub(0.02 * m / (tf.sqrt(s) + 1e-6))
        self.baseline += 0.1 * (length / 2 - self.baseline)
        return float(loss)


def main(episodes=60):
    tf.random.set_seed(1)
    agent = Agent(Policy(), np.random.default_rng(1))
    lengths = []
    for episode in range(episodes):
        played = agent.play()
        loss = agent.learn(*played)
        lengths.append(played[-1])
        if episode % 10 == 9:
            print(f"episode {episode + 1:3d}: mean length {np.mean(lengths[-10:]):5.1f}, loss {loss:8.4f}, baseline {agent.baseline:.3f}")


if __name__ == "__main__":
    main()
