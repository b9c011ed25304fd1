"""The shapes of a decoder that costs follow from, and the counts that follow from shapes alone."""

from __future__ import annotations

import msgspec


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: keys and values of all heads come from one cached vector of `kv_rank` per token.

    Beside it one rotary key of `rope_dim` is cached, shared by all heads. A head's keys are `nope_dim` + `rope_dim`
    wide and its values `value_dim`. `query_rank` is None where queries come straight from the hidden state.
    (DeepSeek-V2, arXiv 2405.04434.)
    """

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int | None = None

    @property
    def cached(self) -> int:
        """Elements cached per token and layer."""
        return self.kv_rank + self.rope_dim


class ModelArchitecture(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes of a decoder of the Llama family; `experts` is 1 for a dense model.

    `qkv_bias`, `output_bias` and `mlp_bias` say which linears carry one, `norm_bias` whether norms do;
    `query_key_norm` is the norm over each head of Qwen3. `sliding_window` is the number of keys that a query sees in
    the `window_layers` that limit it, all of them where that is None. Of a mixture, `intermediate_size` is that of one
    expert, `shared_intermediate_size` that of the experts that every token meets, behind a gate of their own where
    `shared_gate`; the first (or other) `dense_layers` have one MLP of `dense_intermediate_size` instead.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    experts: int = 1
    experts_per_token: int = 1
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    dense_layers: int = 0
    dense_intermediate_size: int = 0
    latent: LatentAttention | None = None
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    query_key_norm: bool = False
    sliding_window: int | None = None
    window_layers: int | None = None
    max_position: int | None = None

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, and so of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def value_size(self) -> int:
        """Width of what attention gives to the output matrix."""
        return self.heads * (self.latent.value_dim if self.latent else self.head_dim)

    @property
    def cached_elements(self) -> int:
        """KV cache elements of one token in one layer."""
        return self.latent.cached if self.latent else 2 * self.kv_size

    @property
    def divisible_kv_heads(self) -> int:
        """Parts that devices can split a token's KV into; beyond them they hold copies."""
        return 1 if self.latent else self.kv_heads

    @property
    def attention_weights(self) -> int:
        """Elements of one layer's attention matrices."""
        output = self.value_size * self.hidden_size
        if self.latent is None:
            return self.hidden_size * (self.query_size + 2 * self.kv_size) + output
        m = self.latent
        query = self.hidden_size * self.query_size
        if m.query_rank is not None:
            query = m.query_rank * (self.hidden_size + self.query_size)
        return query + self.hidden_size * m.cached + m.kv_rank * self.heads * (m.nope_dim + m.value_dim) + output

    @property
    def expert_weights(self) -> int:
        """Elements of the gate, up and down matrices of one expert (of the whole MLP in a dense model)."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def router_weights(self) -> int:
        """Elements of one layer's router; 0 for a dense model."""
        return self.hidden_size * self.experts if self.experts > 1 else 0

    @property
    def shared_weights(self) -> int:
        """Elements of the experts of one layer that every token meets, their gate included."""
        return 3 * self.hidden_size * self.shared_intermediate_size + (self.hidden_size if self.shared_gate else 0)

    @property
    def head_weights(self) -> int:
        """Elements of the output head, which is the embedding itself where they are tied."""
        return self.vocab_size * self.hidden_size

    @property
    def mixture_layers(self) -> int:
        """Layers whose MLP is `intermediate_size` wide, as many times as there are experts."""
        return self.layers - self.dense_layers

    @property
    def _small_weights(self) -> int:
        """Norms and biases of one layer."""
        small = self._norm_weights * 2
        if self.latent is not None:
            small += self.latent.kv_rank + (self.latent.query_rank or 0)
        if self.query_key_norm:
            small += 2 * self.head_dim
        if self.qkv_bias:
            small += self._qkv_bias_weights
        if self.output_bias:
            small += self.hidden_size
        if self.mlp_bias:
            small += 2 * self.intermediate_size + self.hidden_size
        return small

    @property
    def _norm_weights(self) -> int:
        return self.hidden_size * (2 if self.norm_bias else 1)

    @property
    def _qkv_bias_weights(self) -> int:
        if self.latent is None:
            return self.query_size + 2 * self.kv_size
        # Only the matrices that leave the hidden state carry one.
        return self.latent.cached + (self.latent.query_rank or 0)

    def mlp_weights(self, experts: int) -> int:
        """MLP elements of all layers, with `experts` experts counted in each layer that has them."""
        mixture = experts * self.expert_weights + self.router_weights + self.shared_weights
        return self.mixture_layers * mixture + self.dense_layers * 3 * self.hidden_size * self.dense_intermediate_size

    def _parameters(self, experts: int) -> int:
        embeddings = self.head_weights * (1 if self.tied_embeddings else 2)
        attention = self.layers * (self.attention_weights + self._small_weights)
        return attention + self.mlp_weights(experts) + embeddings + self._norm_weights

    @property
    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        return self._parameters(self.experts)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all but the experts it is not routed to."""
        return self._parameters(self.experts_per_token)

    @property
    def linear_weights_per_token(self) -> int:
        """Weight elements that a token is multiplied by in all layers, head excluded."""
        return self.layers * self.attention_weights + self.mlp_weights(self.experts_per_token)

    @property
    def prefill_pair_flops(self) -> float:
        """FLOPs of one (query, key) pair in one layer: the score and value products of all heads."""
        return 2.0 * (self.query_size + self.value_size)

    @property
    def decode_pair_flops(self) -> float:
        """The same for a decode, where latent attention works on the cached vector itself."""
        if self.latent is None:
            return self.prefill_pair_flops
        return 2.0 * self.heads * (self.latent.cached + self.latent.kv_rank)

    def visible_keys(self, context: int) -> float:
        """Keys that a query sees with `context` tokens up to and including itself, on average over the layers."""
        if self.sliding_window is None or context <= self.sliding_window:
            return context
        if self.window_layers is None:
            return self.sliding_window
        limited = self.window_layers * self.sliding_window
        return (limited + (self.layers - self.window_layers) * context) / self.layers

    def touched_experts(self, tokens: int) -> float:
        """Experts of a layer that at least one of `tokens` is expected to meet, with even and independent routing."""
        return self.experts * (1.0 - (1.0 - self.experts_per_token / self.experts) ** tokens)
