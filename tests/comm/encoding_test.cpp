// Encodings of codecs, without any collective.
#include "troika/comm/codec/encoding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"

namespace troika::comm {
namespace {

at::Tensor sample(at::IntArrayRef sizes, c10::ScalarType type) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) * 0.7).sin().view(sizes).to(type);
}

double largest_error(const at::Tensor& got, const at::Tensor& wanted) {
  return (got.to(at::kDouble) - wanted.to(at::kDouble)).abs().max().item<double>();
}

TEST(Encoding, GivesTheTensorBackUpToWhatItLoses) {
  struct Row {
    CodecOptions options;
    c10::ScalarType type;
    int64_t bytes;  // of 6 x 35 elements
    double error;
  };
  const std::vector<Row> rows{
      {{.name = "none"}, at::kDouble, 1680, 0},
      {{.name = "fp16"}, at::kFloat, 420, 0x1p-11},
      {{.name = "bf16"}, at::kFloat, 420, 0x1p-8},
      {{.name = "int8", .block = 100}, at::kFloat, 3 * 104, 0.5 / 127},
      {{.name = "int8", .block = 100}, at::kDouble, 3 * 108, 0.5 / 127},
      {{.name = "int8", .block = 100}, at::kHalf, 3 * 104, 0.5 / 127 + 0x1p-11},
      {{.name = "topk", .density = 1}, at::kFloat, 210 * 8, 0},
      {{.name = "topk", .density = 1}, at::kBFloat16, 210 * 6, 0},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.options.name + std::string(" of ") + c10::toString(row.type));
    const auto encoding = make_encoding(row.options);
    EXPECT_EQ(encoding->name(), row.options.name);
    const auto flat = sample({210}, row.type);
    encode(*encoding, flat);
    EXPECT_TRUE(flat.equal(sample({210}, row.type))) << "encode() changes its tensor";
    // Not contiguous.
    const auto tensor = sample({35, 6}, row.type).t();
    const auto encoded = encode(*encoding, tensor);
    EXPECT_EQ(encoded.bytes.numel(), row.bytes);
    EXPECT_EQ(encoding->bytes_for({6, 35}, row.type), row.bytes);
    const auto back = decode(*encoding, encoded);
    EXPECT_EQ(back.scalar_type(), row.type);
    EXPECT_EQ(back.sizes(), tensor.sizes());
    EXPECT_LE(largest_error(back, tensor), row.error);
    EXPECT_TRUE(back.equal(decode(*encoding, encoded))) << "decode() changes what it reads";
  }
}

TEST(Encoding, TopKKeepsTheLargest) {
  const auto encoding = make_encoding({.name = "topk", .density = 0.25});
  const auto tensor = at::tensor({1.0, -8.0, 2.0, 0.5, 7.0, -0.25, 3.0, 0.0}, at::kFloat);
  EXPECT_TRUE(decode(*encoding, encode(*encoding, tensor))
                  .equal(at::tensor({0.0, -8.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0}, at::kFloat)));
}

// A matrix of `rank`, with the same bits everywhere.
at::Tensor matrix_of_rank(int64_t rows, int64_t columns, int64_t rank) {
  const auto left = (at::arange(rows * rank, at::kDouble) * 1.3).sin().view({rows, rank});
  const auto right = (at::arange(rank * columns, at::kDouble) * 0.9).cos().view({rank, columns});
  return left.mm(right).to(at::kFloat);
}

TEST(Encoding, PowerSgdGivesTensorsOfItsRankBack) {
  const auto encoding = make_encoding({.name = "powersgd", .rank = 3});
  for (const int64_t rank : {1, 3}) {
    const auto tensor = matrix_of_rank(40, 60, rank).view({40, 3, 20});
    const auto encoded = encode(*encoding, tensor);
    EXPECT_EQ(encoded.bytes.numel(), (40 + 60) * 3 * 4);
    const auto back = decode(*encoding, encoded);
    EXPECT_EQ(back.sizes(), tensor.sizes());
    EXPECT_LE(largest_error(back, tensor), 1e-5) << rank;
    EXPECT_TRUE(back.equal(decode(*encoding, encode(*encoding, tensor)))) << "it draws the same";
  }
  EXPECT_EQ(decode(*encoding, encode(*encoding, at::zeros({40, 60}))).count_nonzero().item<int>(),
            0);
}

TEST(Encoding, PowerSgdIsCloseToTheBestFactors) {
  // Singular values that halve.
  const auto noise = [](int64_t n) {
    return (at::arange(n * n, at::kDouble) * 0.37).sin().view({n, n});
  };
  const auto u = std::get<0>(at::linalg_qr(noise(64))),
             v = std::get<0>(at::linalg_qr(noise(64).t()));
  const auto values = at::pow(0.5, at::arange(64, at::kDouble));
  const auto matrix = u.mm(at::diag(values)).mm(v.t());
  for (const int64_t rank : {1, 2, 4}) {
    const auto encoding = make_encoding({.name = "powersgd", .rank = rank});
    const auto error =
        (decode(*encoding, encode(*encoding, matrix)) - matrix).norm().item<double>();
    const auto best = values.narrow(0, rank, 64 - rank).norm().item<double>();
    EXPECT_GE(error, best * (1 - 1e-9)) << rank;
    EXPECT_LE(error, 1.1 * best) << rank;
  }
}

TEST(Encoding, PowerSgdCopiesWhatFactorsWouldNotShrink) {
  const auto encoding = make_encoding({.name = "powersgd", .rank = 4});
  for (const auto& sizes :
       std::vector<std::vector<int64_t>>{{1000}, {8, 8}, {0, 5}, {1, 500}, {}}) {
    const auto tensor = sample(sizes, at::kHalf);
    const auto encoded = encode(*encoding, tensor);
    EXPECT_EQ(encoded.bytes.numel(), 2 * tensor.numel());
    EXPECT_TRUE(decode(*encoding, encoded).equal(tensor));
  }
}

TEST(Encoding, SaysWhatItLeavesOut) {
  for (const std::string name : {"none", "fp16", "bf16", "int8", "topk", "powersgd"}) {
    SCOPED_TRACE(name);
    const auto encoding = make_encoding({.name = name, .density = 0.1, .block = 64});
    const auto values = sample({40, 25}, at::kFloat);
    const auto bytes = at::empty({encoding->bytes_for(values.sizes(), at::kFloat)}, at::kByte);
    const auto left_out = at::empty_like(values);
    encoding->encode(values, at::kFloat, bytes, left_out);
    const auto decoded = at::empty_like(values);
    encoding->decode(bytes, at::kFloat, decoded);
    EXPECT_LE(largest_error(decoded + left_out, values), 1e-7);
    // In place.
    const auto own = values.clone();
    encoding->encode(own, at::kFloat, bytes, own);
    EXPECT_TRUE(own.equal(left_out));
  }
}

// One rank's average is its own bucket, encoded and decoded.
TEST(Encoding, IsWhatTheCodecOfThatNameSends) {
  for (const std::string name : {"none", "fp16", "bf16", "int8", "topk"}) {
    SCOPED_TRACE(name);
    const CodecOptions options{.name = name, .density = 0.1, .error_feedback = false};
    const auto flat = sample({3000}, at::kFloat);
    const auto encoding = make_encoding(options);
    const auto wanted = decode(*encoding, encode(*encoding, flat));
    make_codec(options)->average(local::alone(), {.index = 0, .flat = flat, .parts = {flat}});
    // Int8 quantises the mean once more, which changes nothing but a rounding of its scales.
    EXPECT_LE(largest_error(flat, wanted), name == "int8" ? 1e-7 : 0);
  }
}

TEST(Encoding, KeepsWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::string name : {"none", "fp16", "bf16", "int8", "topk", "powersgd"}) {
    const auto encoding = make_encoding({.name = name, .density = 1});
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      auto tensor = at::ones({10, 10});
      tensor[3][4] = bad;
      EXPECT_FALSE(at::isfinite(decode(*encoding, encode(*encoding, tensor)))[3][4].item<bool>())
          << name << " of " << bad;
    }
  }
}

TEST(Encoding, RefusesWhatItCannotDo) {
  EXPECT_ERROR(make_encoding({.name = "int9"}), ErrorKind::usage,
               "[comm] unknown gradient codec; got int9 (did you mean int8?)");
  const auto encoding = make_encoding({.name = "fp16"});
  EXPECT_ERROR(encode(*encoding, at::ones({2}, at::kInt)), ErrorKind::usage,
               "[comm] encoding fp16 of a tensor without fractions; got Int, expected a floating "
               "type");
  auto encoded = encode(*encoding, at::ones({2}));
  encoded.sizes = {3};
  EXPECT_ERROR(decode(*encoding, encoded), ErrorKind::usage,
               "[comm] no tensor in encoding fp16; got Byte x 4, expected Byte x 6 for Float x 3 "
               "(decode with the options that it was encoded with)");
}

}  // namespace
}  // namespace troika::comm
