"""Predict, from the weights that training saved."""

from my_model.chain import mixer_chain
from reference_impls.predict import main

if __name__ == "__main__":
    main(mixer_chain)
