"""What is known of libraries: tables and predicates on Keras, tf_keras and NumPy, by module and name. Nothing here looks at a running step."""
