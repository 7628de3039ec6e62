"""Measure units and links on this machine; the harness starts this for projections."""

from hybridperf_reference.profile import main
from my_model.chain import mixer_chain

if __name__ == "__main__":
    main(mixer_chain)
