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
  // Returns the metadata of a file, and the bytes of its tensors by name.
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

  const auto lost = troika("export runs/run runs/run/config.toml");
  EXPECT_EQ(lost.exit_code, 2);
  EXPECT_THAT(lost.err,
              HasSubstr("[checkpoint] tensors would replace runs/run/config.toml; got a file "
                        "of another kind"));
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

// All sizes come from the names and shapes.
TEST_F(Weights, OfUnetsAndS2vtsTellTheirSizes) {
  struct Case {
    std::string name, options, data;
    std::vector<std::string> sizes;
  };
  const std::vector<Case> cases = {{"unet",
                                    "--model.depth=2 --model.convolutions=3 --model.base_width=4",
                                    "shape_masks",
                                    {"depth = 2", "convolutions = 3", "base_width = 4"}},
                                   {"s2vt",
                                    "--model.hidden_width=6 --model.lstm_layers=2 --model.width=5",
                                    "captions --data.feature_width=7",
                                    {"hidden_width = 6", "lstm_layers = 2", "width = 5"}}};
  for (const auto& [name, options, data, sizes] : cases) {
    const auto trained = troika("train --model.name=" + name + " " + options +
                                " --data.train_samples=32 --data.validation_samples=8 "
                                "--trainer.max_epochs=1 --run.name=" +
                                name + " --data.name=" + data);
    ASSERT_EQ(trained.exit_code, 0) << trained.err;
    ASSERT_EQ(troika("export runs/" + name + " out.safetensors").exit_code, 0);
    const auto in = troika("import out.safetensors in.safetensors --model " + name);
    ASSERT_EQ(in.exit_code, 0) << in.err;
    const auto [metadata, bytes] = parts("in.safetensors");
    EXPECT_EQ(bytes, parts("out.safetensors").second) << name;
    for (const auto& size : sizes) {
      EXPECT_THAT(metadata["troika.options"].get<std::string>(), HasSubstr("\n" + size + " "));
    }
    const auto validated = troika("validate runs/" + name);
    EXPECT_EQ(validated.exit_code, 0) << validated.err;
    std::filesystem::remove(folder_ / "out.safetensors");
    std::filesystem::remove(folder_ / "in.safetensors");
  }
}

TEST_F(Weights, MayBeTheMovingAverage) {
  const std::string run =
      "train --model.name=mlp --model.hidden_width=6 --data.train_samples=64 "
      "--data.validation_samples=8 --trainer.max_epochs=1 --trainer.enable_progress_bar=false "
      "--run.overwrite=true --ema.enabled=";
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
  EXPECT_EQ(
      no_heads.err,
      "error: [checkpoint] weights of gpt do not contain the number of attention heads; got no "
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

TEST_F(Weights, AGptGoesToHuggingFaceAndComesBackToTheBit) {
  write_file_atomically(folder_ / "text", std::string(2000, 'x'));
  const auto trained = troika(
      "train --data.name=text --data.files=text --model.name=gpt --model.layers=2 --model.heads=2 "
      "--model.width=8 --data.context=16 --trainer.max_steps=2");
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto out = troika("export runs/run --hf theirs");
  ASSERT_EQ(out.exit_code, 0) << out.err;
  EXPECT_THAT(out.out, HasSubstr("theirs/model.safetensors: 28 tensors"));
  const auto config = nlohmann::json::parse(read_file(folder_ / "theirs/config.json"));
  const nlohmann::json expected{{"architectures", {"GPT2LMHeadModel"}},
                                {"model_type", "gpt2"},
                                {"vocab_size", 256},
                                {"n_positions", 16},
                                {"n_embd", 8},
                                {"n_layer", 2},
                                {"n_head", 2},
                                {"activation_function", "gelu_new"},
                                {"tie_word_embeddings", true},
                                {"torch_dtype", "float32"}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(config.at(key), value) << key;
  const auto [metadata, bytes] = parts("theirs/model.safetensors");
  EXPECT_EQ(metadata, nlohmann::json({{"format", "pt"}}));
  EXPECT_FALSE(bytes.contains("lm_head.weight"));
  EXPECT_EQ(bytes, parts("runs/run/checkpoints/last.safetensors").second);
  const auto in = troika("import theirs/model.safetensors back.safetensors --model gpt");
  ASSERT_EQ(in.exit_code, 0) << in.err;
  EXPECT_EQ(parts("back.safetensors").second, bytes);

  const auto both = troika("export runs/run out.safetensors --hf theirs");
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("got OUT and --hf"));
  ASSERT_EQ(troika("train --model.name=mlp --data.train_samples=32 --trainer.max_steps=1 "
                   "--run.name=images")
                .exit_code,
            0);
  const auto images = troika("export runs/images --hf images");
  EXPECT_EQ(images.exit_code, 2);
  EXPECT_THAT(images.err, HasSubstr("got mlp, expected gpt"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "images"));
}

// Comes back through an index, as of weights in several files, and says the same.
TEST_F(Weights, ALlamaGoesToHuggingFaceAndComesBackToTheBit) {
  write_file_atomically(folder_ / "text", std::string(2000, 'x') + "yz");
  const auto trained = troika(
      "train --data.name=text --data.files=text --model.name=llama --model.layers=1 "
      "--model.heads=4 --model.kv_heads=2 --model.width=16 --model.ffn_width=24 "
      "--model.rope_scaling=linear --model.rope_factor=2 --data.context=16 --trainer.max_steps=2");
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto out = troika("export runs/run --hf theirs");
  ASSERT_EQ(out.exit_code, 0) << out.err;
  const auto config = nlohmann::json::parse(read_file(folder_ / "theirs/config.json"));
  const nlohmann::json expected{{"architectures", {"LlamaForCausalLM"}},
                                {"model_type", "llama"},
                                {"vocab_size", 256},
                                {"hidden_size", 16},
                                {"intermediate_size", 24},
                                {"num_hidden_layers", 1},
                                {"num_attention_heads", 4},
                                {"num_key_value_heads", 2},
                                {"max_position_embeddings", 16},
                                {"rms_norm_eps", 1e-5},
                                {"rope_theta", 1e4},
                                {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
                                {"tie_word_embeddings", true}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(config.at(key), value) << key;
  const auto bytes = parts("theirs/model.safetensors").second;
  nlohmann::json map;
  for (const auto& [name, tensor] : bytes) map[name] = "model.safetensors";
  write_file_atomically(folder_ / "theirs/model.safetensors.index.json",
                        nlohmann::json{{"weight_map", map}}.dump());
  const auto in =
      troika("import theirs/model.safetensors.index.json back.safetensors --model llama");
  ASSERT_EQ(in.exit_code, 0) << in.err;
  EXPECT_EQ(parts("back.safetensors").second, bytes);
  EXPECT_EQ(bytes, parts("runs/run/checkpoints/last.safetensors").second);
  const std::string say = "sample --temperature 0.9 --top-k 9 --top-p 0.8 --length 24 ";
  const auto ours = troika(say + "runs/run");
  ASSERT_EQ(ours.exit_code, 0) << ours.err;
  EXPECT_EQ(troika(say + "back.safetensors").out, ours.out);
  EXPECT_THAT(troika("sample --top-p 0 runs/run").err,
              HasSubstr("[nn] top_p of samples is out of range; got 0, expected 0 < top_p <= 1"));
}

// One best checkpoint, and a later one.
TEST_F(Weights, AreFoundByAnyHandleByAllCommands) {
  const std::string options =
      " --model.name=mlp --model.hidden_width=6 --data.train_samples=32 --data.augment=false "
      "--data.validation_samples=8 --trainer.enable_progress_bar=false --optim.lr=0.5 "
      "--trainer.loggers=csv";
  const auto trained = troika(
      "train --checkpoint.monitor=validation/loss --checkpoint.mode=max "
      "--trainer.max_epochs=6" +
      options);
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto run = folder_ / "runs/run/checkpoints";
  const auto best = std::filesystem::read_symlink(run / "best").string();
  const auto last = std::filesystem::read_symlink(run / "last").string();
  ASSERT_NE(best, last);
  const auto weights_of = [&](const std::string& name) {
    return parts("runs/run/checkpoints/" + name + "/model.safetensors").second;
  };
  const std::pair<std::string, std::string> rows[] = {
      {"last", last},
      {"best", best},
      {"runs/run", last},
      {"runs/run/", last},
      {"runs/run/best", best},
      {"runs/run/checkpoints", last},
      {"runs/run/checkpoints/best", best},
      {"runs/run/checkpoints/" + best, best},
      {"runs/run/checkpoints/last.safetensors", last},
      {"runs/run/checkpoints/" + best + "/model.safetensors", best},
      {"copy.safetensors", best},
  };
  ASSERT_EQ(troika("export best copy.safetensors").exit_code, 0);
  for (const auto& [handle, name] : rows) {
    SCOPED_TRACE(handle);
    const auto out = troika("export " + handle + " out.safetensors");
    ASSERT_EQ(out.exit_code, 0) << out.err;
    EXPECT_EQ(parts("out.safetensors").second, weights_of(name));
  }
  const auto expected = troika("test runs/run/config.toml --trainer.ckpt_path=best").out;
  ASSERT_THAT(expected, HasSubstr("test/loss "));
  for (const auto& handle : {rows[4].first, rows[9].first, rows[10].first}) {
    SCOPED_TRACE(handle);
    const auto from = " runs/run/config.toml --trainer.ckpt_path=" + handle;
    EXPECT_EQ(troika("test" + from).out, expected);
    EXPECT_THAT(troika("validate" + from).out, HasSubstr("validation/loss "));
    EXPECT_EQ(troika("predict --output p.safetensors" + from).exit_code, 0);
    // A new run from these weights, which it leaves as they are.
    const auto started = troika("train --model.weights=" + handle + options +
                                " --trainer.max_steps=1 --optim.warmup_steps=1000000 "
                                "--run.name=started --run.overwrite=true");
    ASSERT_EQ(started.exit_code, 0) << started.err;
  }
  for (const auto& [handle, name] : {rows[2], rows[4], rows[8]}) {
    SCOPED_TRACE(handle);
    const auto resumed = troika(
        "train --run.name=resumed --run.overwrite=true --trainer.max_epochs=7 "
        "--trainer.ckpt_path=" +
        handle + options);
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_THAT(resumed.err, HasSubstr("resumes from"));
    EXPECT_THAT(resumed.err, HasSubstr("checkpoints/" + name + ": "));
  }
  const auto refused = troika("train --trainer.ckpt_path=copy.safetensors" + options);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("copy.safetensors; got weights alone, expected a checkpoint"));
}

TEST_F(Weights, WhatIsNotThereOrUnknownIsSaid) {
  const auto missing = troika("export nowhere out.safetensors");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(
      missing.err,
      HasSubstr("[checkpoint] there is no checkpoint nowhere; got No such file or directory, "
                "expected last, best, the folder of a run or of a checkpoint, or a file of "
                "weights"));
  EXPECT_THAT(
      troika("export last out.safetensors").err,
      HasSubstr("[checkpoint] there is no last checkpoint; got none in runs/run/checkpoints, "
                "expected a run that was trained (give the folder of the run, for "
                "example runs/NAME)"));
  make_folder(folder_ / "empty");
  EXPECT_THAT(troika("export empty out.safetensors").err,
              HasSubstr("there is no checkpoint empty; got a folder without one"));
  EXPECT_THAT(troika("export").err, HasSubstr("[export] CHECKPOINT is missing"));
  EXPECT_THAT(troika("export nowhere").err,
              HasSubstr("got none, expected OUT, a file, or --hf=DIR, or --peft=DIR"));
  EXPECT_THAT(troika("import nowhere out --model mlp").err, HasSubstr("cannot open nowhere"));
  EXPECT_THAT(troika("import " TROIKA_PROGRAM " out --model mlp").err,
              HasSubstr("not a safetensors file"));
  EXPECT_THAT(troika("import nowhere out").err, HasSubstr("[import] --model is missing"));
  const auto key = troika("import nowhere out --model mlp --model.width_=3");
  EXPECT_EQ(key.exit_code, 2);
  EXPECT_THAT(key.err, HasSubstr("model.width"));
}

}  // namespace
}  // namespace troika
