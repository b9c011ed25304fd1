"""ONNX graphs give the figures of the config that they were exported from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper

from superinfer.contracts.errors import ModelError
from superinfer.profiler.architecture import architecture_from_config
from superinfer.profiler.decoder_shapes import ModelArchitecture
from superinfer.profiler.onnx_decoder import read_onnx_decoder
from superinfer.profiler.static import static_features
from superinfer.profiler.static_file import read_static_file

from .onnx_graphs import Style, config_architecture, write_decoder


def figures(architecture: ModelArchitecture) -> dict[str, float]:
    static = static_features(architecture, "float32")
    groups = {"compute": static.compute, "bandwidth": static.bandwidth, "memory": static.memory}
    values = {
        f"{group}.{name}": getattr(part, name)
        for group, part in groups.items()
        for name in part.__struct_fields__
        if name not in ("max_position", "needs")
    }
    for each in static.communication:
        values[f"all_reduce.{each.degree}"] = each.all_reduce_bytes_per_token
    return values


@pytest.mark.parametrize("style", ["softmax", "node", "grouped", "packed"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_way_to_write_attention_gives_the_figures_of_the_config(tmp_path: Path, style: Style, tied: bool) -> None:
    decoder = read_onnx_decoder(write_decoder(tmp_path / "model.onnx", style, tied=tied))
    expected = config_architecture(tie_word_embeddings=tied)
    assert figures(decoder.architecture) == pytest.approx(figures(expected), rel=1e-9)
    assert decoder.counted_parameters == expected.parameters
    assert decoder.dtype == "float32"


@pytest.mark.parametrize("style", ["softmax", "grouped", "packed"])
def test_biases_of_the_projections_are_seen(tmp_path: Path, style: Style) -> None:
    decoder = read_onnx_decoder(write_decoder(tmp_path / "model.onnx", style, bias=True))
    assert decoder.architecture.qkv_bias
    assert decoder.architecture.parameters == decoder.counted_parameters


def test_the_window_of_an_attention_node_is_the_models(tmp_path: Path) -> None:
    decoder = read_onnx_decoder(write_decoder(tmp_path / "model.onnx", "grouped", window=64))
    assert decoder.architecture.sliding_window == 64


def test_a_graph_without_shapes_says_what_is_known_all_the_same(tmp_path: Path) -> None:
    path = write_decoder(tmp_path / "model.onnx", "softmax", has_shapes=False)
    with pytest.raises(ModelError) as caught:
        read_onnx_decoder(path)
    message = str(caught.value)
    assert "shapes of attention are neither in the graph nor can they be inferred" in message
    assert f"{config_architecture().parameters:,} parameters" in message
    assert "GFLOP per token" in message
    assert "config.json" in message


def test_attention_nodes_tell_their_heads_without_any_shape(tmp_path: Path) -> None:
    decoder = read_onnx_decoder(write_decoder(tmp_path / "model.onnx", "grouped", has_shapes=False))
    assert decoder.architecture.kv_heads == 2


def write_graph(path: Path, nodes: list[Any], weights: list[Any]) -> Path:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    body = helper.make_graph(nodes, "g", [value], [result], weights)
    path.write_bytes(helper.make_model(body).SerializeToString())
    return path


def test_graphs_that_are_no_decoders_are_refused_with_what_they_lack(tmp_path: Path) -> None:
    relu = write_graph(tmp_path / "relu.onnx", [helper.make_node("Relu", ["x"], ["y"])], [])
    with pytest.raises(ModelError, match="no product with a weight matrix"):
        read_onnx_decoder(relu)
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], [0.0] * 12)
    product = write_graph(tmp_path / "mlp.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], [weight])
    with pytest.raises(ModelError, match=r"no embedding table.*12 parameters"):
        read_onnx_decoder(product)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model at all")
    with pytest.raises(ModelError, match=r"broken\.onnx"):
        read_onnx_decoder(broken)


def test_a_folder_with_a_graph_alone_is_analysed_by_it(tmp_path: Path) -> None:
    write_decoder(tmp_path / "model.onnx")
    profile = read_static_file(tmp_path)
    assert profile.model == tmp_path.name
    assert profile.static.compute.parameters == config_architecture().parameters
    assert any("3 layers" in note for note in profile.notes)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "opset"), [("llama", 18), ("phi3", 23)])
def test_what_torch_exports_gives_the_figures_of_the_config_to_one_percent(
    tmp_path: Path, family: str, opset: int
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("onnxscript")
    config = {
        "model_type": family,
        "vocab_size": 512,
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 160,
        "pad_token_id": 0,
        "tie_word_embeddings": family != "phi3",
    }
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)  # equal weights would be written once

    class Logits(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Any) -> Any:
            return self.model(input_ids=tokens, use_cache=False).logits

    shapes = {"tokens": {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}}
    tokens = torch.zeros((2, 8), dtype=torch.long)
    program = torch.onnx.export(Logits(), (tokens,), dynamo=True, opset_version=opset, dynamic_shapes=shapes)
    program.save(str(tmp_path / "model.onnx"))
    decoder = read_onnx_decoder(tmp_path / "model.onnx")
    assert figures(decoder.architecture) == pytest.approx(figures(architecture_from_config(config)), rel=0.01)
    assert decoder.counted_parameters == pytest.approx(decoder.architecture.parameters, rel=0.01)
