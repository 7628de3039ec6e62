"""Export the model's weights; the harness starts this for hybridperf export."""

from hybridperf_reference.interchange import main
from my_model.chain import mixer_chain

if __name__ == "__main__":
    main(mixer_chain)
