"""Train; the harness starts this on every rank."""

from hybridperf_reference.train import main
from my_model.chain import mixer_chain

if __name__ == "__main__":
    main(mixer_chain)
