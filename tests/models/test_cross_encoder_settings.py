"""What the settings of a cross-encoder decide before it is loaded."""

from kohaku_ray.models.cross_encoder import CrossEncoderConfig


def test_weights_are_in_sixteen_bits_on_gpus_and_as_saved_on_cpus():
    """bge-reranker-v2-m3 is saved in float32, which takes a GPU ten times as long (findings/gpu5.md, G8)."""

    def pairs(**settings):
        return CrossEncoderConfig(model="m", **settings)

    assert [pairs().weights_dtype, pairs(gpus=0.25).weights_dtype] == ["auto", "bfloat16"]
    assert pairs(gpus=0.25, precision="float32").weights_dtype == "float32"
    assert pairs(gpus=0.25).model_identity == pairs(precision="bfloat16").model_identity != pairs().model_identity
