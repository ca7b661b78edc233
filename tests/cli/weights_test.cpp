// `troika export` and `troika import`.
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

class Weights : public testing::Test {
 protected:
  testing_support::Outcome troika(const std::string& arguments) {
    return testing_support::run_program("cd " + folder_.path().string() +
                                        " && " TROIKA_PROGRAM " " + arguments);
  }
  // Its metadata, and the bytes of its tensors by name.
  std::pair<nlohmann::json, std::map<std::string, std::string>> parts(
      const std::string& file) const {
    const std::string text = read_file(folder_ / file);
    uint64_t length = 0;
    std::memcpy(&length, text.data(), sizeof length);
    const auto header = nlohmann::json::parse(text.substr(sizeof length, length));
    std::map<std::string, std::string> tensors;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto offsets = entry["data_offsets"].get<std::vector<size_t>>();
      tensors[name] = text.substr(sizeof length + length + offsets[0], offsets[1] - offsets[0]);
    }
    return {header["__metadata__"], tensors};
  }

  const TemporaryFolder folder_;
};

TEST_F(Weights, GoOutAndComeBack) {
  const auto trained = troika(
      "train --model.name=mlp --model.hidden_width=6 --data.train_samples=32 "
      "--data.validation_samples=8 --trainer.max_epochs=1 --trainer.enable_progress_bar=false");
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto out = troika("export runs/run/checkpoints/last out.safetensors");
  ASSERT_EQ(out.exit_code, 0) << out.err;
  EXPECT_THAT(out.out, HasSubstr("out.safetensors: 6 tensors"));
  const auto [metadata, bytes] = parts("out.safetensors");
  EXPECT_EQ(metadata, nlohmann::json({{"format", "pt"}}));
  const auto saved = parts("runs/run/checkpoints/last.safetensors");
  EXPECT_EQ(bytes, saved.second);

  const auto again = troika("export runs/run/checkpoints/last.safetensors same.safetensors");
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_file(folder_ / "same.safetensors"), read_file(folder_ / "out.safetensors"));

  const auto in = troika("import out.safetensors in.safetensors --model mlp");
  ASSERT_EQ(in.exit_code, 0) << in.err;
  const auto imported = parts("in.safetensors");
  EXPECT_EQ(imported.second, bytes);
  EXPECT_THAT(imported.first["troika.options"].get<std::string>(), HasSubstr("hidden_width = 6"));

  const auto wrong =
      troika("import out.safetensors wrong.safetensors --model mlp --model.hidden_width=7");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("the tensors of out.safetensors do not fit the model"));
  EXPECT_THAT(wrong.err, HasSubstr("`layers.0.weight` of shape"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "wrong.safetensors"));

  auto damaged = read_file(folder_ / "runs/run/checkpoints/last/model.safetensors");
  damaged.back() ^= 1;
  write_file_atomically(folder_ / "runs/run/checkpoints/last/model.safetensors", damaged);
  const auto refused = troika("export runs/run/checkpoints/last out.safetensors");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("is damaged"));
  EXPECT_EQ(read_file(folder_ / "out.safetensors"), read_file(folder_ / "same.safetensors"));
}

TEST_F(Weights, MayBeTheMovingAverage) {
  const std::string run =
      "train --model.name=mlp --model.hidden_width=6 --data.train_samples=64 "
      "--data.validation_samples=8 --trainer.max_epochs=1 --trainer.enable_progress_bar=false "
      "--ema.enabled=";
  ASSERT_EQ(troika(run + "false").exit_code, 0);
  ASSERT_EQ(troika("export runs/run/checkpoints/last out.safetensors").exit_code, 0);
  ASSERT_EQ(troika(run + "true").exit_code, 0);
  ASSERT_EQ(troika("export runs/run/checkpoints/last average.safetensors").exit_code, 0);
  const auto [header, bytes] = parts("average.safetensors");
  EXPECT_EQ(header, parts("out.safetensors").first);
  EXPECT_NE(bytes, parts("out.safetensors").second);
}

TEST_F(Weights, AnImportedGptSpeaksAsBefore) {
  write_file_atomically(folder_ / "text", std::string(2000, 'x'));
  const std::string sizes = " --model.layers=1 --model.heads=2 --model.width=8 ";
  const auto trained = troika("train --data.name=text --data.files=text --model.name=gpt" + sizes +
                              "--data.context=16 --trainer.max_steps=2");
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  ASSERT_EQ(troika("export runs/run/checkpoints/last out.safetensors").exit_code, 0);
  const auto no_heads = troika("import out.safetensors in.safetensors --model gpt");
  EXPECT_EQ(no_heads.exit_code, 2);
  EXPECT_EQ(no_heads.err,
            "error: [train] weights of gpt do not tell the number of attention heads; got no "
            "config.json beside out.safetensors, expected one with n_head (give --model.heads)\n");
  write_file_atomically(folder_ / "config.json", R"({"n_head": 2, "activation_function": "relu"})");
  EXPECT_THAT(troika("import out.safetensors in.safetensors --model gpt").err,
              HasSubstr("config.json describes a GPT-2 that gpt is not: activation_function; got "
                        "\"relu\", expected \"gelu_new\""));
  write_file_atomically(folder_ / "config.json", R"({"n_head": 2, "n_layer": 1})");
  const auto in = troika("import out.safetensors in.safetensors --model gpt");
  ASSERT_EQ(in.exit_code, 0) << in.err;
  const std::string say = "sample --temperature 0 --length 8 ";
  const auto ours = troika(say + "runs/run/checkpoints/last.safetensors");
  const auto theirs = troika(say + "in.safetensors");
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  EXPECT_EQ(ours.out, theirs.out);
}

TEST_F(Weights, WhatIsNotThereOrUnknownIsSaid) {
  EXPECT_THAT(troika("export nowhere out.safetensors").err, HasSubstr("cannot open nowhere"));
  EXPECT_THAT(troika("import nowhere out --model mlp").err, HasSubstr("cannot open nowhere"));
  EXPECT_THAT(troika("import " TROIKA_PROGRAM " out --model mlp").err,
              HasSubstr("not a safetensors file"));
  EXPECT_THAT(troika("import nowhere out").err, HasSubstr("--model is required"));
  const auto key = troika("import nowhere out --model mlp --model.width_=3");
  EXPECT_EQ(key.exit_code, 2);
  EXPECT_THAT(key.err, HasSubstr("model.width"));
}

}  // namespace
}  // namespace troika
