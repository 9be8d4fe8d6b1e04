"""A bundle answers: on the terminal, and over HTTP as OpenAI's clients ask.

Tokenizer policy and sampling profiles are those of the evaluate stage, so that what is served is
what was scored. Neither MindSpore nor torch is imported.
"""
