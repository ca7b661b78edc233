// Adapters from the command line: weights of Hugging Face in, adapters and merged weights out.
#include <gmock/gmock.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing::HasSubstr;

class LoraCommand : public testing::Test {
 protected:
  LoraCommand() {
    std::string text;
    for (int i = 0; i < 50; ++i) text += "the quick brown fox jumps over the lazy dog\n";
    write_file_atomically(folder_ / "text", text);
    run("train --model.name=llama --model.layers=1 --model.heads=4 --model.kv_heads=2 "
        "--model.width=16 --model.ffn_width=24 --trainer.max_steps=2 --run.name=base" +
        data_);
    run("export runs/base --hf base");
  }

  testing_support::Outcome troika(const std::string& arguments) {
    return testing_support::run_program("cd " + folder_.path().string() +
                                        " && " TROIKA_PROGRAM " " + arguments);
  }
  std::string run(const std::string& arguments) {
    const auto outcome = troika(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << arguments << '\n' << outcome.err;
    return outcome.out + outcome.err;
  }
  std::string refusal(const std::string& arguments) {
    const auto outcome = troika(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    return outcome.err;
  }
  // Returns the bytes of a file's tensors by name.
  std::map<std::string, std::string> tensors(const std::string& file) const {
    const std::string text = read_file(folder_ / file);
    uint64_t length = 0;
    std::memcpy(&length, text.data(), sizeof length);
    const auto header = nlohmann::json::parse(text.substr(sizeof length, length));
    std::map<std::string, std::string> result;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto offsets = entry["data_offsets"].get<std::vector<size_t>>();
      result[name] = text.substr(sizeof length + length + offsets[0], offsets[1] - offsets[0]);
    }
    return result;
  }

  const TemporaryFolder folder_;
  const std::string data_ = " --data.name=text --data.files=text --data.context=16";
  const std::string train_ =
      "train --model.name=llama --model.weights=base --model.weights_sizes=true --lora.rank=2 "
      "--lora.target_modules=q_proj,down_proj --trainer.enable_progress_bar=false" +
      data_;
};

TEST_F(LoraCommand, FineTunesWeightsOfHuggingFaceAndExportsThemMergedOrApart) {
  const auto log = run(train_ + " --trainer.max_steps=5");
  EXPECT_THAT(log, HasSubstr("144 of them trainable"));
  const auto base = tensors("base/model.safetensors");
  const auto saved = tensors("runs/run/checkpoints/last/model.safetensors");
  EXPECT_EQ(saved.size(), base.size() + 4);
  for (const auto& [name, bytes] : base) EXPECT_EQ(saved.at(name), bytes) << name;
  run("validate runs/run");
  run("sample runs/run --length 4");
  EXPECT_THAT(run(train_ + " --trainer.max_steps=6 --trainer.ckpt_path=last --lora.dropout=0.1"),
              HasSubstr("lora.dropout is 0.1, and was 0"));
  EXPECT_THAT(refusal(train_ + " --lora.alpha=3 --trainer.ckpt_path=last"),
              HasSubstr("are scaled in another way; got lora.alpha 3, lora.use_rslora false, "
                        "expected lora.alpha 16"));

  EXPECT_THAT(run("export runs/run --peft adapter"), HasSubstr("adapter: 4 tensors"));
  const auto config = nlohmann::json::parse(read_file(folder_ / "adapter/adapter_config.json"));
  const nlohmann::json expected{{"peft_type", "LORA"},
                                {"task_type", "CAUSAL_LM"},
                                {"r", 2},
                                {"lora_alpha", 16},
                                {"target_modules", {"q_proj", "down_proj"}},
                                {"base_model_name_or_path", "base"},
                                {"fan_in_fan_out", false}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(config.at(key), value) << key;
  const auto adapter = tensors("adapter/adapter_model.safetensors");
  EXPECT_TRUE(adapter.contains("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));

  // The adapters come back to the base, and give the same merged weights.
  run("import base both.safetensors --model llama --peft adapter");
  run("export runs/run --hf merged");
  run("export both.safetensors merged.safetensors");
  const auto merged = tensors("merged/model.safetensors");
  EXPECT_EQ(tensors("merged.safetensors"), merged);
  for (const auto& [name, bytes] : base) {
    const bool is_adapted = name.find("q_proj") != name.npos || name.find("down_proj") != name.npos;
    EXPECT_EQ(merged.at(name) == bytes, !is_adapted) << name;
  }
  run("export both.safetensors --peft again");
  EXPECT_EQ(tensors("again/adapter_model.safetensors"), adapter);
}

// The sizes are those of the run's own checkpoint, whatever its name.
TEST_F(LoraCommand, JudgesARunOfAConfigurationFile) {
  write_file_atomically(folder_ / "tuned.toml",
                        "[run]\nname = \"tuned\"\n[model]\nname = \"llama\"\nweights = \"base\"\n"
                        "weights_sizes = true\n[lora]\nrank = 2\n");
  run("train tuned.toml --trainer.max_steps=1" + data_);
  EXPECT_THAT(run("validate tuned.toml" + data_), HasSubstr("loss"));
}

TEST_F(LoraCommand, RefusesAdaptersThatDoNotFit) {
  run(train_ + " --trainer.max_steps=1");
  run("export runs/run --peft adapter");
  run("import base both.safetensors --model llama --peft adapter");
  const std::string start =
      "train --model.name=llama --model.weights=both.safetensors "
      "--model.weights_sizes=true --run.name=next --trainer.max_steps=1" +
      data_;
  run(start + " --lora.rank=2 --lora.target_modules=q_proj,down_proj");
  EXPECT_THAT(refusal(start + " --lora.rank=3 --lora.target_modules=q_proj,down_proj"),
              HasSubstr("lora_A.weight"));
  EXPECT_THAT(refusal(start + " --lora.rank=2 --lora.target_modules=q_proj"),
              HasSubstr("down_proj.lora_A.weight"));
  EXPECT_THAT(refusal(train_ + " --lora.target_modules=c_attn"),
              HasSubstr("c_attn of lora.target_modules names no layer; got a model whose linear "
                        "layers end in q_proj"));
  EXPECT_THAT(refusal(train_ + " --lora.rank=-1"), HasSubstr("lora.rank"));
  EXPECT_THAT(refusal("export runs/base --peft none"),
              HasSubstr("cannot write adapters for PEFT; got a model without adapters"));
  EXPECT_THAT(refusal("train --model.name=mlp --model.weights_sizes=true"),
              HasSubstr("model.weights_sizes needs weights of a language model"));
  EXPECT_THAT(refusal(train_ + " --model.heads=8"),
              HasSubstr("model.weights_sizes takes the sizes of model.weights, which has another "
                        "model.heads; got 8, expected 4 (leave model.heads out)"));
  run(train_ + " --run.name=same --model.heads=4 --trainer.max_steps=1");
  EXPECT_THAT(run(start + " --run.name=none --model.weights_strict=false"),
              HasSubstr("4 of the 4 tensors of adapters in both.safetensors are left out, because "
                        "the model has no such adapters"));

  auto config = nlohmann::json::parse(read_file(folder_ / "adapter/adapter_config.json"));
  const auto refusal_with = [&](const std::string& key, const nlohmann::json& value) {
    auto changed = config;
    changed[key] = value;
    write_file_atomically(folder_ / "adapter/adapter_config.json", changed.dump());
    return refusal("import base other.safetensors --model llama --peft adapter");
  };
  EXPECT_THAT(refusal_with("r", 3), HasSubstr("lora_A.weight"));
  EXPECT_THAT(refusal_with("r", 0), HasSubstr("has no usable numbers; got r 0"));
  EXPECT_THAT(refusal_with("init_lora_weights", "olora"),
              HasSubstr("an adapter whose base PEFT changes: init_lora_weights; got \"olora\""));
  EXPECT_THAT(refusal_with("use_dora", true), HasSubstr("not supported: use_dora"));
  EXPECT_THAT(refusal_with("peft_type", "IA3"), HasSubstr("got \"IA3\", expected peft_type"));
}

}  // namespace
}  // namespace troika
