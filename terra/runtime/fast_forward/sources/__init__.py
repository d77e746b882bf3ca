"""Where the values of a skipped call come from: arguments that vary, numbers and arrays calculated of them, values that the call reads late, calls that are really made, attributes that it sets."""
