#include "troika/server/sum_coding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "troika/base/checksum.h"
#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/server/summation_wire.h"
#include "troika/server/value_coding.h"

namespace troika::server {

namespace {

constexpr size_t kCodingHead = 2 * sizeof(uint64_t);  // the number of values, and the parameter
constexpr int kMostLevel = 127;  // of int8, dither and natural, on each side of zero

[[noreturn]] void fail_coded(size_t bytes) {
  throw Error("server", ErrorKind::failure,
              {.what = "encoded gradients", .got = std::to_string(bytes) + " bytes"});
}

template <typename T>
T at(const char* bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void put(char* bytes, size_t index, T value) {
  std::memcpy(bytes + index * sizeof(T), &value, sizeof(T));
}

size_t coded_bytes(const SumCoding& coding, size_t count, size_t value_bytes) {
  const size_t parameter = std::max<size_t>(1, coding.parameter);
  if (coding.form == SumForm::half) return count * sizeof(uint16_t);
  if (coding.form == SumForm::top) {
    return kCodingHead + parameter * (value_bytes + sizeof(uint32_t));
  }
  if (coding.form == SumForm::random) {
    return kCodingHead + sizeof(uint64_t) + parameter * value_bytes;
  }
  if (coding.form == SumForm::sign) return kCodingHead + value_bytes + (count + 7) / 8;
  return kCodingHead + (count + parameter - 1) / parameter * value_bytes + count;
}

// Values with the largest magnitudes, in the order of their places. The first of equal ones counts
// as larger.
template <typename T>
void encode_top(std::span<const T> values, size_t sent, char* to) {
  std::vector<uint32_t> places(values.size());
  std::iota(places.begin(), places.end(), 0u);
  const auto is_larger = [&](uint32_t a, uint32_t b) {
    const T left = std::abs(values[a]), right = std::abs(values[b]);
    return left > right || (left == right && a < b);
  };
  std::nth_element(places.begin(), places.begin() + static_cast<ptrdiff_t>(sent) - 1, places.end(),
                   is_larger);
  std::sort(places.begin(), places.begin() + static_cast<ptrdiff_t>(sent));
  char* const indices = to + sent * sizeof(T);
  for (size_t i = 0; i < sent; ++i) {
    put(to, i, values[places[i]]);
    put(indices, i, places[i]);
  }
}

// Equal for equal values, so that runs can be repeated.
template <typename T>
uint64_t seed_of(std::span<const T> values) {
  return fingerprint({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

// Calls `visit` with each of `sent` places out of `count`, ascending (selection sampling: Knuth,
// volume 2, algorithm 3.4.2 S).
template <typename Visit>
void visit_places(uint64_t seed, size_t count, size_t sent, const Visit& visit) {
  Random random(seed);
  for (size_t place = 0; sent > 0; ++place) {
    if (random.below(count - place) >= sent) continue;
    visit(place);
    --sent;
  }
}

template <typename T>
void encode_random(std::span<const T> values, size_t sent, char* to) {
  const uint64_t seed = seed_of(values);
  put(to, 0, seed);
  to += sizeof seed;
  size_t i = 0;
  visit_places(seed, values.size(), sent, [&](size_t place) { put(to, i++, values[place]); });
}

template <typename T>
void encode_sign(std::span<const T> values, char* to) {
  double sum = 0;
  for (const T value : values) sum += std::abs(static_cast<double>(value));
  put(to, 0, static_cast<T>(sum / static_cast<double>(std::max<size_t>(1, values.size()))));
  to += sizeof(T);
  std::fill_n(to, (values.size() + 7) / 8, '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0) to[i / 8] = static_cast<char>(to[i / 8] | (1 << (i % 8)));
  }
}

// The magnitude of a level of `natural`, as part of the largest one: 1 for kMostLevel, half of it
// for each level below, and 0 for level 0.
template <typename T>
T natural_magnitude(int level) {
  return level == 0 ? T{0} : std::ldexp(T{1}, level - kMostLevel);
}

// One of the two levels around a value of at most 1, so that the expectation is the value.
template <typename T>
int natural_level(T value, Random& random) {
  const T magnitude = std::abs(value);
  if (magnitude == 0) return 0;
  const int below = std::max(0, kMostLevel + std::ilogb(magnitude));
  const T low = natural_magnitude<T>(below);
  const T step = below == 0 ? natural_magnitude<T>(1) : low;  // to the next level
  const bool is_up =
      below < kMostLevel && static_cast<T>(random.uniform()) < (magnitude - low) / step;
  const int level = std::min(kMostLevel, below + (is_up ? 1 : 0));
  return value < 0 ? -level : level;
}

// The largest magnitude, or the L2 norm if it is a number of this type.
template <typename T>
T norm_of(std::span<const T> values, bool is_l2) {
  T largest = 0;
  for (const T value : values) largest = std::max(largest, std::abs(value));
  if (!is_l2 || largest == 0) return largest;
  double squares = 0;  // of values that cannot overflow
  for (const T value : values) {
    const double part = static_cast<double>(value) / static_cast<double>(largest);
    squares += part * part;
  }
  const auto norm = static_cast<T>(static_cast<double>(largest) * std::sqrt(squares));
  return std::isfinite(norm) ? norm : largest;
}

// Blocks of a scale and one byte for each value: the nearest level, or one of the two around it.
template <typename T>
void encode_int8(const SumCoding& coding, std::span<const T> values, char* to) {
  const auto form = coding.form;
  const size_t block = coding.parameter;
  Random random(form == SumForm::int8 ? 0 : seed_of(values));
  const auto level_of = [&](T value) -> T {
    if (form == SumForm::natural) return static_cast<T>(natural_level(value, random));
    return form == SumForm::dither ? std::floor(value + static_cast<T>(random.uniform()))
                                   : std::nearbyint(value);
  };
  const T divisor = form == SumForm::natural ? T{1} : T{kMostLevel};
  for (size_t begin = 0; begin < values.size(); begin += block) {
    const auto part = values.subspan(begin, std::min(block, values.size() - begin));
    const T scale = norm_of(part, coding.has_l2_norm) / divisor;
    put(to, 0, scale);
    to += sizeof(T);
    for (const T value : part) {
      // A scale may be rounded to zero.
      const T level = scale > 0 ? level_of(value / scale) : T{0};
      *to++ = static_cast<char>(std::clamp<T>(level, -kMostLevel, kMostLevel));
    }
  }
}

template <typename T>
void decode_top(std::span<const char> data, std::span<T> values) {
  const size_t sent = data.size() / (sizeof(T) + sizeof(uint32_t));
  const char* const indices = data.data() + sent * sizeof(T);
  for (size_t i = 0; i < sent; ++i) {
    const auto place = at<uint32_t>(indices, i);
    if (place >= values.size()) fail_coded(data.size());
    values[place] = at<T>(data.data(), i);
  }
}

template <typename T>
void decode_random(std::span<const char> data, size_t sent, std::span<T> values) {
  const char* const from = data.data() + sizeof(uint64_t);
  size_t i = 0;
  visit_places(at<uint64_t>(data.data(), 0), values.size(), sent,
               [&](size_t place) { values[place] = at<T>(from, i++); });
}

template <typename T>
void decode_sign(const char* from, std::span<T> values) {
  const T scale = at<T>(from, 0);
  from += sizeof(T);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = (from[i / 8] >> (i % 8)) & 1 ? scale : -scale;
  }
}

template <typename T>
void decode_int8(const char* from, size_t block, SumForm form, std::span<T> values) {
  for (size_t begin = 0; begin < values.size(); begin += block) {
    const T scale = at<T>(from, 0);
    from += sizeof(T);
    for (T& value : values.subspan(begin, std::min(block, values.size() - begin))) {
      const int level = static_cast<signed char>(*from++);
      const T natural = std::copysign(natural_magnitude<T>(std::abs(level)), static_cast<T>(level));
      value = scale * (form == SumForm::natural ? natural : static_cast<T>(level));
    }
  }
}

template <typename T>
bool encode(const SumCoding& coding, std::span<const char> bytes, std::string& encoded) {
  const std::span values(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
  if (coded_bytes(coding, values.size(), sizeof(T)) >= bytes.size()) return false;
  if (coding.form == SumForm::half) {
    return encode_values(ValueForm::half,
                         sizeof(T) == sizeof(float) ? ValueType::float32 : ValueType::float64,
                         bytes, 0, encoded);
  }
  if (!std::ranges::all_of(values, [](T value) { return std::isfinite(value); })) return false;
  encoded.resize(coded_bytes(coding, values.size(), sizeof(T)));
  put<uint64_t>(encoded.data(), 0, values.size());
  put<uint64_t>(encoded.data(), 1, coding.parameter);
  char* const to = encoded.data() + kCodingHead;
  switch (coding.form) {
    case SumForm::top:
      encode_top(values, coding.parameter, to);
      break;
    case SumForm::random:
      encode_random(values, coding.parameter, to);
      break;
    case SumForm::sign:
      encode_sign(values, to);
      break;
    default:
      encode_int8(coding, values, to);
  }
  return true;
}

template <typename T>
void decode(SumForm form, std::span<const char> encoded, size_t most, std::string& result) {
  if (encoded.size() < kCodingHead) fail_coded(encoded.size());
  const auto count = at<uint64_t>(encoded.data(), 0), parameter = at<uint64_t>(encoded.data(), 1);
  if (count > most / sizeof(T) || parameter == 0 || parameter > count ||
      encoded.size() != coded_bytes({form, static_cast<uint32_t>(parameter)}, count, sizeof(T))) {
    fail_coded(encoded.size());
  }
  result.assign(count * sizeof(T), '\0');
  const std::span values(reinterpret_cast<T*>(result.data()), count);
  const auto data = encoded.subspan(kCodingHead);
  switch (form) {
    case SumForm::top:
      return decode_top(data, values);
    case SumForm::random:
      return decode_random(data, parameter, values);
    case SumForm::sign:
      return decode_sign(data.data(), values);
    default:
      return decode_int8(data.data(), parameter, form, values);
  }
}

template <typename T>
void combine(char* values, const char* with, size_t bytes, T factor) {
  for (size_t i = 0; i < bytes / sizeof(T); ++i) {
    put<T>(values, i, at<T>(values, i) + factor * at<T>(with, i));
  }
}

void combine(ValueType type, char* values, const char* with, size_t bytes, double factor) {
  if (type == ValueType::float32) {
    combine<float>(values, with, bytes, static_cast<float>(factor));
  } else {
    combine<double>(values, with, bytes, factor);
  }
}

}  // namespace

SumCoding coding_for(const SummationCoding& options, size_t count) {
  const auto most = static_cast<double>(std::max<size_t>(1, count));
  const bool has_blocks = options.form == SumForm::int8 || options.form == SumForm::dither ||
                          options.form == SumForm::natural;
  const double parameter = options.form == SumForm::sign ? 1
                           : has_blocks                  ? static_cast<double>(options.block)
                                        : std::round(options.density * static_cast<double>(count));
  const bool is_dithered = options.form == SumForm::dither || options.form == SumForm::natural;
  return {options.form, static_cast<uint32_t>(std::clamp(parameter, 1.0, most)),
          is_dithered && options.has_l2_norm};
}

bool encode_sum(const SumCoding& coding, ValueType type, std::span<const char> values,
                std::string& encoded, char* left_out) {
  if (coding.form == SumForm::plain) return false;
  const bool fits = type == ValueType::float32 ? encode<float>(coding, values, encoded)
                                               : encode<double>(coding, values, encoded);
  if (!fits || !left_out) return fits;
  std::string decoded;
  decode_sum(coding.form, type, encoded, values.size(), decoded);
  std::ranges::copy(values, left_out);
  combine(type, left_out, decoded.data(), values.size(), -1);
  return true;
}

void decode_sum(SumForm form, ValueType type, std::span<const char> encoded, size_t most,
                std::string& values) {
  if (form == SumForm::half) return decode_values(ValueForm::half, type, encoded, values);
  if (type == ValueType::float32) {
    decode<float>(form, encoded, most, values);
  } else {
    decode<double>(form, encoded, most, values);
  }
}

bool Residuals::encode(uint64_t key, const SumCoding& coding, ValueType type,
                       std::span<char> values, std::string& encoded, double rate) {
  auto& kept = kept_[key];
  const bool has_kept = kept.values.size() == values.size();
  if (has_kept) {
    const double factor = rate > 0 ? kept.rate / rate : 1;
    combine(type, values.data(), kept.values.data(), values.size(), factor);
  }
  kept.values.resize(values.size());
  if (rate > 0 || !has_kept) kept.rate = rate;
  if (encode_sum(coding, type, values, encoded, kept.values.data())) return true;
  kept_.erase(key);
  return false;
}

std::string Residuals::residual(uint64_t key) const {
  const auto found = kept_.find(key);
  return found == kept_.end() ? std::string() : found->second.values;
}

void Residuals::keep(uint64_t key, std::string residual, double rate) {
  enter(key);
  kept_[key] = {std::move(residual), rate};
}

void Residuals::enter(uint64_t key) {
  if (!kept_.empty() && (kept_.begin()->first & kLayoutBit) != (key & kLayoutBit)) kept_.clear();
}

}  // namespace troika::server
