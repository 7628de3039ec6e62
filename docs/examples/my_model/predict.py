"""Predict, from the weights that training saved."""

from hybridperf_reference.predict import main
from my_model.chain import mixer_chain

if __name__ == "__main__":
    main(mixer_chain)
