// The states of codecs: by parameters, in whatever buckets and on whatever number of ranks.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/support/state_dict.h"
#include "troika/base/random.h"
#include "troika/comm/codec/codec.h"
#include "troika/comm/local/local.h"

namespace troika::comm {
namespace {

constexpr int64_t kPartRows = 12, kPartColumns = 10;

// A bucket of gradients of matrices with these names.
GradientBucket named_bucket(std::vector<std::string> names, int64_t index = 0,
                            int64_t columns = kPartColumns) {
  const auto parts = static_cast<int64_t>(names.size());
  Random random(static_cast<uint64_t>(index) + 7);
  std::vector<double> values;
  for (int64_t i = 0; i < parts * kPartRows * columns; ++i) values.push_back(random.normal());
  GradientBucket bucket{.index = index, .flat = at::tensor(values, at::kDouble), .parts = {}};
  for (const auto& part : bucket.flat.chunk(parts)) {
    bucket.parts.push_back(part.view({kPartRows, columns}));
  }
  bucket.names = std::move(names);
  return bucket;
}

const std::vector<CodecOptions> kWithState{{.name = "powersgd", .start_step = 2},
                                           {.name = "topk", .density = 0.1},
                                           {.name = "int8", .block = 50}};

std::unique_ptr<Codec> codec_after(const Group& group, const CodecOptions& options, int steps,
                                   const std::vector<std::string>& names) {
  auto codec = make_codec(options);
  for (int step = 0; step < steps; ++step) codec->average(group, named_bucket(names));
  return codec;
}

// A run that freezes a parameter and thaws another of the same shape, and has other buckets.
TEST(CodecState, BelongsToParametersByName) {
  for (const auto& options : kWithState) {
    local::run(1, [&](const Group& group) {
      SCOPED_TRACE(options.name);
      const auto before = codec_after(group, options, 4, {"a", "b"});
      const auto after = make_codec(options), fresh = make_codec(options);
      after->load_state(before->state());
      const auto error = tensor_of(before->state(), "error.b");
      EXPECT_GT(error.abs().max().item<double>(), 0);
      const auto averaged = [&](Codec& codec, const char* name, const at::Tensor& added = {}) {
        const auto bucket = named_bucket({name}, 1);
        if (added.defined()) bucket.parts[0].add_(added);
        codec.average(group, bucket);
        return bucket.flat;
      };
      EXPECT_TRUE(averaged(*after, "c").equal(averaged(*fresh, "c"))) << "it is new";
      EXPECT_TRUE(tensor_of(after->state(), "error.b").equal(error)) << "until b has a gradient";
      if (options.name == "powersgd") {
        EXPECT_FALSE(averaged(*after, "b").equal(named_bucket({"b"}, 1).flat)) << "b has started";
      } else {
        EXPECT_TRUE(averaged(*after, "b").equal(averaged(*fresh, "b", error)));
      }
      EXPECT_FALSE(tensor_of(after->state(), "error.b").equal(error));
    });
  }
}

TEST(CodecState, ErrorsCountByTheNumberOfRanks) {
  for (const auto& options : kWithState) {
    local::run(1, [&](const Group& group) {
      SCOPED_TRACE(options.name);
      const auto before = codec_after(group, options, 4, {"a"});
      for (const double weight : {0.0, 1.0, 1.5}) {
        const auto after = make_codec(options);
        after->load_state(before->state(), weight);
        for (const auto& [name, tensor] : after->state()) {
          const bool is_error = name.starts_with("error.");
          EXPECT_TRUE(tensor.equal(tensor_of(before->state(), name) * (is_error ? weight : 1)));
          EXPECT_TRUE(!is_error || weight > 0) << name;
        }
      }
    });
  }
}

TEST(CodecState, OfAnotherCodecIsRefused) {
  const at::Tensor some = at::zeros({2, 2});
  const auto refused = [](const std::string& codec, const std::string& name) {
    return "[comm] gradient codec " + codec + " cannot load a state with " + name +
           " (load with the codec options it was saved with)";
  };
  using enum ErrorKind;
  EXPECT_ERROR(make_codec({.name = "none"})->load_state({{"error.a", some}}), usage,
               refused("none", "error.a"));
  EXPECT_ERROR(make_codec({.name = "topk"})->load_state({{"q.a", some}}), usage,
               refused("topk", "q.a"));
  EXPECT_ERROR(
      make_codec({.name = "int8", .error_feedback = false})->load_state({{"error.a", some}}), usage,
      refused("int8", "error.a"));
  for (const char* name : {"bucket0.error", "error", "error.", "step.a", "q."}) {
    EXPECT_ERROR(make_codec({.name = "powersgd"})->load_state({{name, some}}), usage,
                 refused("powersgd", name));
  }
}

TEST(CodecState, AParameterThatChangedIsRefused) {
  for (const auto& options : kWithState) {
    local::run(1, [&](const Group& group) {
      const auto codec = codec_after(group, options, 3, {"a"});
      EXPECT_ERROR(codec->average(group, named_bucket({"a"}, 0, 20)), ErrorKind::usage,
                   "[comm] gradient codec: error.a does not fit its parameter; got Double "
                   "[12, 10], expected Double [12, 20] (parameters keep their shapes from step to "
                   "step and over a checkpoint)");
    });
  }
}

}  // namespace
}  // namespace troika::comm
