"""Count what the model's units cost; the harness starts this for projections."""

from hybridperf_reference.units import main
from my_model.chain import mixer_chain

if __name__ == "__main__":
    main(mixer_chain)
