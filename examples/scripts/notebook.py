# %% [markdown]
# Regression on scikit-learn's diabetes data, written as the cells of a notebook: no function round the loop, everything at the top level.

# %%
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_diabetes

tf.random.set_seed(5)
x, y = load_diabetes(return_X_y=True)
x = (x / x.std(0)).astype(np.float32)
y = ((y - y.mean()) / y.std()).astype(np.float32)
data = tf.data.Dataset.from_tensor_slices((x[:384], y[:384])).shuffle(384, seed=5).batch(32)

# %%
sizes = [x.shape[1], 16, 16, 1]
weights = [tf.Variable(tf.random.normal((a, b), stddev=a**-0.5)) for a, b in zip(sizes, sizes[1:])]
biases = [tf.Variable(tf.zeros(b)) for b in sizes[1:]]
variables = weights + biases
velocity = [tf.Variable(tf.zeros_like(v)) for v in variables]


def predict(h):
    for i, (w, b) in enumerate(zip(weights, biases)):
        h = h @ w + b
        if i < len(weights) - 1:
            h = tf.nn.elu(h)
    return h[:, 0]


# %%
history = []
for epoch in range(6):
    rate = 0.05 * 0.8**epoch
    for xb, yb in data:
        with tf.GradientTape() as tape:
            error = predict(xb) - yb
            loss = tf.reduce_mean(error**2)
            penalty = 1e-3 * tf.add_n([tf.reduce_sum(w**2) for w in weights])
        gradients = tape.gradient([loss, penalty], variables)
        for v, m, g in zip(variables, velocity, gradients):
            m.assign(0.9 * m + g)
            v.assign_sub(rate * m)
        history.append(loss.numpy())
    residual = predict(tf.constant(x[384:])).numpy() - y[384:]
    print(f"epoch {epoch}: training {np.mean(history[-12:]):.5f}, test {np.mean(residual**2):.5f}")

# %%
print("best step", int(np.argmin(history)), "of", len(history))
