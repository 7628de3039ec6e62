"""Train; the harness starts this on every rank."""

from my_model.chain import mixer_chain
from reference_impls.train import main

if __name__ == "__main__":
    main(mixer_chain)
