"""What is known of libraries: tables and predicates on Keras, tf_keras, NumPy and others, by module and name. Nothing here looks at a running step."""
