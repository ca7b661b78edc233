#include "troika/server/value_coding.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "tests/support/errors.h"
#include "troika/base/random.h"
#include "troika/server/request.h"

namespace troika::server {
namespace {

template <typename T>
std::span<const char> as_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
std::vector<T> through(ValueForm form, const std::vector<T>& values, uint64_t seed = 0) {
  const ValueType type = sizeof(T) == sizeof(float) ? ValueType::float32 : ValueType::float64;
  std::string encoded, decoded;
  EXPECT_TRUE(encode_values(form, type, as_bytes(values), seed, encoded));
  decode_values(form, type, encoded, decoded);
  std::vector<T> result(decoded.size() / sizeof(T));
  if (!result.empty()) std::memcpy(result.data(), decoded.data(), decoded.size());
  return result;
}

TEST(ServerValueCoding, HalvesAreTheNearestOnes) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = from_half(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(to_half(value), bits) << value;
    if (std::isinf(value) || (bits & 0x7fff) >= 0x7bff) continue;
    const float next = from_half(static_cast<uint16_t>(bits + 1));
    const float middle = (value + next) / 2;
    ASSERT_EQ(to_half(middle), bits % 2 == 0 ? bits : bits + 1) << "ties go to even";
    ASSERT_EQ(to_half(std::nextafter(middle, next)), bits + 1);
    ASSERT_EQ(to_half(std::nextafter(middle, value)), bits);
  }
  EXPECT_EQ(from_half(0x3555), 0.333251953125f) << "IEEE 754: a third";
  EXPECT_EQ(to_half(65520), 0x7c00);
  EXPECT_TRUE(std::isnan(from_half(to_half(NAN))));
}

TEST(ServerValueCoding, FixedPointIsUnbiased) {
  for (const auto form : {ValueForm::fixed1, ValueForm::fixed2, ValueForm::fixed3}) {
    const std::vector<double> values{-1, 0.1234567, 3, 0.7654321};
    const double step =
        4 / (std::pow(256.0, static_cast<double>(form) - static_cast<double>(ValueForm::half)) - 1);
    std::vector<double> sum(values.size());
    constexpr int kDraws = 10'000;
    for (uint64_t seed = 0; seed < kDraws; ++seed) {
      const auto decoded = through(form, values, mix(seed));
      ASSERT_EQ(decoded[0], -1);
      ASSERT_EQ(decoded[2], 3);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_LT(std::fabs(decoded[i] - values[i]), step);
        sum[i] += decoded[i];
      }
    }
    // Five standard deviations of the mean of draws from {0, 1} * step.
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(sum[i] / kDraws, values[i], 5 * 0.5 * step / std::sqrt(kDraws)) << i;
    }
  }
  EXPECT_EQ(through(ValueForm::fixed1, std::vector<float>(5, 0.25f)), std::vector<float>(5, 0.25f));
  EXPECT_EQ(through(ValueForm::fixed1, std::vector<float>{}), std::vector<float>{});
}

TEST(ServerValueCoding, ValuesThatDoNotFitStayPlain) {
  std::string encoded;
  for (const double wrong : std::vector<double>{NAN, -INFINITY, 1e300}) {
    const std::vector<double> values{1, wrong};
    EXPECT_FALSE(encode_values(ValueForm::half, ValueType::float64, as_bytes(values), 0, encoded));
    if (std::isfinite(wrong)) continue;
    EXPECT_FALSE(
        encode_values(ValueForm::fixed2, ValueType::float64, as_bytes(values), 0, encoded));
  }
}

TEST(ServerValueCoding, CompressionLosesNothingAndRefusesOtherBytes) {
  std::vector<Key> keys;
  for (Key key = 0; key < 1000; ++key) keys.push_back(key * 3);
  std::string packed, bytes;
  ASSERT_TRUE(pack(as_bytes(keys), packed));
  EXPECT_LT(packed.size(), 4000u);
  unpack(packed, bytes);
  EXPECT_TRUE(std::ranges::equal(bytes, as_bytes(keys)));
  Random random(3);
  std::vector<Key> noise(100);
  for (auto& key : noise) key = random();
  EXPECT_FALSE(pack(as_bytes(noise), bytes)) << "it would be longer";
  std::string liar = packed;
  const uint64_t size = uint64_t{1} << 40;
  std::memcpy(liar.data(), &size, sizeof(size));
  EXPECT_ERROR(unpack(liar, bytes), ErrorKind::failure,
               "[server] a compressed part of a message is too long; got 1099511627776 bytes");
  for (int i = 0; i < 2000; ++i) {
    std::string text = packed.substr(0, random.below(packed.size()) + 1);
    text[random.below(text.size())] = static_cast<char>(random());
    try {
      unpack(text, bytes);
    } catch (const Error&) {
    }
  }
}

// Requests keep their meaning in every encoding, and malformed ones are errors.
// A message of 1 byte for each value would take eight times its size.
TEST(ServerValueCoding, ValuesThatBecomeTooLongAreRefused) {
  const std::string encoded(2 * sizeof(double) + kMostUnpacked / sizeof(double) + 1, '\0');
  std::string values;
  EXPECT_THROW(decode_values(ValueForm::fixed1, ValueType::float64, encoded, values), Error);
  EXPECT_TRUE(values.empty());
}

TEST(ServerValueCoding, RequestsAreDecodedAsTheyWere) {
  std::vector<Key> keys;
  std::vector<float> values;
  for (Key key = 0; key < 50; ++key) keys.push_back(key * key), values.push_back(1.5f);
  RequestBody body{.operation = Operation::push_pull, .table = 3, .keys = keys};
  body.values = as_bytes(values);
  Random random(5);
  for (int flags = 0; flags < 16; ++flags) {
    Coding coding{.values = flags & 1 ? ValueForm::half : ValueForm::plain,
                  .keys_are_packed = (flags & 2) != 0,
                  .values_are_packed = (flags & 4) != 0,
                  .signature = flags & 8 ? uint64_t{77} : 0};
    const auto parts = make_parts(body, ValueType::float32, coding, 0);
    for (const bool is_absent : {false, true}) {
      coding.keys_are_absent = is_absent;
      RequestHead head{.worker = 2, .number = 9, .table = 3, .coding = coding};
      head.operation = Operation::push_pull;
      std::string message;
      write_head(head, message);
      message += is_absent ? *absent_keys() : *parts.keys;
      message += *parts.rest;
      const auto plain = decode_request(message, ValueType::float32, keys);
      EXPECT_EQ(plain.size(), parts.plain_bytes);
      const auto request = parse_request(plain);
      EXPECT_EQ(request.head.worker, 2u);
      EXPECT_EQ(request.body.operation, Operation::push_pull);
      EXPECT_EQ(request.body.table, 3u);
      EXPECT_TRUE(std::ranges::equal(request.body.keys, keys));
      EXPECT_TRUE(std::ranges::equal(request.body.values, as_bytes(values)));
      for (int i = 0; i < 300; ++i) {
        std::string text = message.substr(0, message.size() - random.below(3));
        for (int k = 0; k < 3; ++k) text[random.below(text.size())] = static_cast<char>(random());
        try {
          parse_request(decode_request(text, ValueType::float32, keys));
        } catch (const Error&) {
        }
      }
    }
  }
}

}  // namespace
}  // namespace troika::server
