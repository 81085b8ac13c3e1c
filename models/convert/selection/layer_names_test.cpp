// What names of layers say: those of known models.
#include "models/convert/selection/layer_names.h"

#include <gtest/gtest.h>

namespace blockscale {
namespace {

using models::Role;

TEST(Role, OfNamesOfKnownModels) {
  struct Case {
    Role role;
    std::string name;
    std::vector<std::int64_t> shape;
  };
  const std::vector<Case> cases = {
      {Role::linear, "encoder.layer.0.attention.self.query.weight", {384, 384}},
      {Role::linear, "encoder.layer.0.attention.output.dense.weight", {384, 384}},
      {Role::linear, "pooler.dense.weight", {384, 384}},
      {Role::linear, "model.layers.0.mlp.gate_proj.weight", {8, 8}},
      {Role::linear, "model.layers.0.mlp.experts.3.w1.weight", {8, 8}},
      {Role::linear, "decoder.block.0.layer.0.SelfAttention.q.weight", {8, 8}},
      {Role::embedding, "embeddings.word_embeddings.weight", {30522, 384}},
      {Role::embedding, "model.embed_tokens.weight", {8, 8}},
      {Role::embedding, "transformer.wte.weight", {8, 8}},
      {Role::embedding, "shared.weight", {8, 8}},
      {Role::embedding, "a.relative_attention_bias.weight", {32, 8}},
      {Role::embedder, "embeddings_project.weight", {8, 8}},
      {Role::embedder, "visual.patch_embed.proj.weight", {8, 8}},
      {Role::head, "lm_head.weight", {8, 8}},
      {Role::head, "output.weight", {8, 8}},
      {Role::head, "lm_head.decoder.weight", {8, 8}},
      {Role::head, "lm_head.dense.weight", {8, 8}},
      {Role::head, "head.weight", {8, 8}},
      {Role::head, "model.layers.61.shared_head.head.weight", {8, 8}},
      {Role::head, "cls.predictions.decoder.weight", {8, 8}},
      {Role::head, "predictions.decoder.weight", {8, 8}},
      {Role::head, "score.weight", {8, 8}},
      {Role::head, "classifier.weight", {8, 8}},
      {Role::head, "classifier.out_proj.weight", {8, 8}},
      {Role::head, "classification_head.dense.weight", {8, 8}},
      {Role::head, "qa_outputs.weight", {2, 8}},
      {Role::head, "embed_out.weight", {8, 8}},
      {Role::head, "proj_out.weight", {8, 8}},
      {Role::head, "decoder.weight", {8, 8}},
      {Role::head, "vocab_projector.weight", {8, 8}},
      {Role::head, "model.decoder.output_projection.weight", {8, 8}},
      {Role::head, "talker.codec_head.weight", {8, 8}},
      {Role::head, "class_embed.0.weight", {8, 8}},
      {Role::linear, "transformer_blocks.0.proj_out.weight", {8, 8}},
      {Role::linear, "cls.predictions.transform.dense.weight", {8, 8}},
      {Role::linear, "model.decoder.layers.0.fc1.weight", {8, 8}},
      {Role::linear, "model.layers.0.self_attn.heads_proj.weight", {8, 8}},
      {Role::sensitive, "model.layers.0.self_attn.indexer.weights_proj.weight", {8, 8}},
      {Role::linear, "model.layers.0.self_attn.indexer.wk.weight", {8, 8}},
      {Role::sensitive, "model.layers.61.eh_proj.weight", {8, 8}},
      {Role::sensitive, "layers.2.attn.compressor.wkv.weight", {8, 8}},
      {Role::router, "model.layers.0.mlp.gate.weight", {8, 8}},
      {Role::router, "model.layers.0.block_sparse_moe.gate.weight", {8, 8}},
      {Role::router, "model.layers.0.mlp.shared_expert_gate.weight", {1, 8}},
      {Role::router, "model.layers.0.mlp.router.weight", {8, 8}},
      {Role::router, "model.layers.0.mlp.gate.wg.weight", {8, 8}},
      {Role::router, "model.layers.0.mlp.switch.weight", {8, 8}},
      {Role::router, "model.layers.0.router.weight", {8, 8}},
      {Role::router, "model.layers.0.block_sparse_moe.router.layer.weight", {8, 8}},
      {Role::router, "model.layers.0.mlp.router.classifier.weight", {8, 8}},
      {Role::router, "model.layers.0.router.proj.weight", {8, 8}},
      {Role::router, "model.layers.0.mlp.gate.base_layer.weight", {8, 8}},
      {Role::router, "model.layers.0.mlp.gate.linear.weight", {8, 8}},
      {Role::head, "score.modules_to_save.default.weight", {8, 8}},
      {Role::head, "score.original_module.weight", {8, 8}},
      {Role::head, "output.base_layer.weight", {8, 8}},
      {Role::linear, "decoder.layer.weight", {8, 8}},
      {Role::linear, "blocks.0.norm1.linear.weight", {8, 8}},
      {Role::norm, "blocks.0.norm1._fsdp_wrapped_module.weight", {8, 8}},
      {Role::embedding, "embed_tokens._orig_mod.weight", {8, 8}},
      {Role::embedder, "pos_embed.linear.weight", {8, 8}},
      {Role::sensitive, "a.indexer.weights_proj.base_layer.weight", {8, 8}},
      {Role::experts, "model.layers.0.mlp.experts.gate_up_proj", {2, 8, 8}},
      {Role::other, "model.layers.0.mlp.experts.gate_up_proj_bias", {2, 8}},
      {Role::other, "conv.weight", {8, 1, 4}},
      {Role::other, "encoder.layer.0.output.dense.bias", {384}},
      {Role::norm, "model.layers.0.input_layernorm.weight", {384}},
      {Role::other, "embeddings.position_ids", {1, 512}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(static_cast<int>(models::role_of(c.name, c.shape)), static_cast<int>(c.role))
        << c.name;
  }
}

TEST(FusedGroup, OfSiblings) {
  const auto same = [](const std::string& a, const std::string& b) {
    return models::fused_group(a) == models::fused_group(b);
  };
  EXPECT_TRUE(same("m.0.q_proj.weight", "m.0.v_proj.weight"));
  EXPECT_TRUE(same("m.0.self.query.weight", "m.0.self.key.weight"));
  EXPECT_TRUE(same("m.0.gate_proj.weight", "m.0.up_proj.weight"));
  EXPECT_TRUE(same("e.1.w1.weight", "e.1.w3.weight"));
  EXPECT_TRUE(same("q_a_proj.weight", "kv_a_proj_with_mqa.weight"));
  EXPECT_TRUE(same("a.in_proj_qkv.weight", "a.in_proj_z.weight"));
  EXPECT_TRUE(same("a.wq_a.weight", "a.wkv.weight"));
  EXPECT_TRUE(same("a.add_q_proj.weight", "a.add_v_proj.weight"));
  EXPECT_TRUE(same("a.fc1.weight", "a.fc3.weight"));
  EXPECT_TRUE(same("a.gate.weight", "a.up.weight"));
  EXPECT_FALSE(same("a.fc1.weight", "a.fc2.weight"));
  EXPECT_FALSE(same("m.0.q_proj.weight", "m.1.q_proj.weight"));
  EXPECT_FALSE(same("m.0.q_proj.weight", "m.0.o_proj.weight"));
  EXPECT_FALSE(same("e.1.w1.weight", "e.1.w2.weight"));
  EXPECT_FALSE(same("m.gate_proj.weight", "m.down_proj.weight"));
}

TEST(FusedGroup, LooksThroughWrappers) {
  const auto same = [](const std::string& a, const std::string& b) {
    return models::fused_group(a) == models::fused_group(b);
  };
  for (const char* wrapper :
       {"linear", "base_layer", "module", "_orig_mod", "_fsdp_wrapped_module", "original_module",
        "base_layer.linear", "modules_to_save.default", "0", "0.linear", "linear.0", "layer"}) {
    const std::string end = std::string(".") + wrapper + ".weight";
    EXPECT_TRUE(same("m.0.q_proj" + end, "m.0.k_proj" + end)) << wrapper;
    EXPECT_TRUE(same("m.0.gate_proj" + end, "m.0.up_proj" + end)) << wrapper;
    EXPECT_FALSE(same("m.0.q_proj" + end, "m.1.k_proj" + end)) << wrapper;
    EXPECT_FALSE(same("m.0.q_proj" + end, "m.0.o_proj" + end)) << wrapper;
    EXPECT_FALSE(same("m.0.q_proj" + end, "m.0.up_proj" + end)) << wrapper;
  }
  // Of which one is wrapped alone, as adapters do it; or the block is.
  EXPECT_TRUE(same("m.q_proj.base_layer.weight", "m.k_proj.weight"));
  EXPECT_TRUE(same("m._orig_mod.q_proj.weight", "m.k_proj.weight"));
  // Lists: the third of each belong together.
  EXPECT_TRUE(same("mlp.gate_proj.3.weight", "mlp.up_proj.3.weight"));
  EXPECT_FALSE(same("mlp.gate_proj.3.weight", "mlp.up_proj.4.weight"));
  EXPECT_TRUE(same("mlp.gate_proj.3.linear.weight", "mlp.up_proj.3.linear.weight"));
  // What stands within a layer of the name is none of the wrappers known.
  EXPECT_FALSE(same("m.q_proj.lora_A.weight", "m.k_proj.lora_A.weight"));
  EXPECT_FALSE(same("m.query.dense.weight", "m.key.dense.weight"));
  EXPECT_FALSE(same("layers.0.weight", "layers.1.weight"));
}

TEST(LayerPath, OfWrappedLayers) {
  const auto path = [](const std::string& weight) {
    const models::LayerPath p = models::path_of(weight);
    return p.container + "|" + p.name + "|" + p.index;
  };
  EXPECT_EQ(path("a.b.q_proj.weight"), "a.b|q_proj|");
  EXPECT_EQ(path("a.b.q_proj.base_layer.linear.weight"), "a.b|q_proj|");
  EXPECT_EQ(path("a._orig_mod.gate_proj.3.linear.weight"), "a|gate_proj|3");
  EXPECT_EQ(path("q_proj.0.1.weight"), "|q_proj|0.1");
  EXPECT_EQ(path("linear.weight"), "|linear|");
  EXPECT_EQ(path("a.experts.gate_up_proj"), "a.experts|gate_up_proj|");
}

}  // namespace
}  // namespace blockscale
