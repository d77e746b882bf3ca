"""A3C on a cart and pole: Python plays until the pole falls or the horizon is there, then the update is made from what was seen.

One of Janus' eleven programs: a loop over states whose number is not known before, an environment that is no tensor program, and state that lives from
one step to the next. One worker of the many: it takes the shared weights, plays with its own copy, and applies its gradients to the shared ones.
AutoGraph: fails ('SymbolicTensor' has no `numpy`).
"""

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.environments import CartPole, entropy, log_probability, sample
from examples.programs.training import adam

SIZES = {
    "test": {"units": 16, "horizon": 5},
    "benchmark": {"units": 128, "horizon": 20},
    "paper": {"units": 128, "horizon": 20},
}
DISCOUNT, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.99, 0.5, 0.01


class ActorCritic(keras.Model):
    def __init__(self, units, actions):
        super().__init__()
        self.actor = keras.Sequential([keras.layers.Dense(units, activation="relu"), keras.layers.Dense(actions)])
        self.critic = keras.Sequential([keras.layers.Dense(units, activation="relu"), keras.layers.Dense(1)])

    def call(self, states):
        return self.actor(states), self.critic(states)[:, 0]


class Worker:
    def __init__(self, seed, units, horizon):
        self.rng = np.random.default_rng(seed)
        self.environment, self.horizon = CartPole(self.rng), horizon
        self.state = self.environment.reset()
        self.shared, self.local = (ActorCritic(units, CartPole.ACTIONS) for _ in range(2))
        for model in (self.shared, self.local):
            model(self.state[np.newaxis])
        self.optimizer = adam(self.shared.trainable_variables, 1e-3)
        self.reward, self.episodes = 0.0, []

    def play(self):
        """States, actions and rewards up to the end of the episode or the horizon; whether it was the end."""
        states, actions, rewards, over = [], [], [], False
        while not over and len(states) < self.horizon:
            logits, _ = self.local(tf.constant(self.state[np.newaxis]))
            action = sample(self.rng, logits.numpy())[0]
            states.append(self.state)
            actions.append(action)
            self.state, reward, over = self.environment.step(action)
            rewards.append(reward)
            self.reward += reward
        return states, actions, rewards, over

    def returns(self, rewards, over):
        """The discounted sum of the rewards from each state on; the critic guesses what comes after the last."""
        value = 0.0 if over else float(self.local(tf.constant(self.state[np.newaxis]))[1][0])
        returns = []
        for reward in reversed(rewards):
            value = reward + DISCOUNT * value
            returns.append(value)
        return np.array(returns[::-1], np.float32)

    def loss(self, states, actions, returns):
        logits, values = self.local(tf.constant(np.stack(states)))
        advantages = returns - values
        policy_loss = -tf.reduce_mean(log_probability(logits, np.array(actions)) * tf.stop_gradient(advantages))
        return policy_loss + VALUE_WEIGHT * tf.reduce_mean(tf.square(advantages)) - ENTROPY_WEIGHT * entropy(logits)

    def train_step(self):
        for mine, shared in zip(self.local.trainable_variables, self.shared.trainable_variables):
            mine.assign(shared)
        states, actions, rewards, over = self.play()
        returns = self.returns(rewards, over)
        with tf.GradientTape() as tape:
            loss = self.loss(states, actions, returns)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.local.trainable_variables), 40.0)
        self.optimizer.apply_gradients(zip(gradients, self.shared.trainable_variables))
        if over:
            self.episodes.append(self.reward)
            self.state, self.reward = self.environment.reset(), 0.0
        return loss


def build(seed, size="benchmark"):
    return Job(Worker(seed, **SIZES[size]).train_step, [()])
