#include "troika/server/table.h"

#include <fmt/format.h>

#include "troika/base/checksum.h"
#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/base/text.h"

namespace troika::server {

namespace {

using Wide = unsigned __int128;

[[noreturn]] void refuse(std::string_view text, const std::string& word) {
  throw Error("server", ErrorKind::usage,
              {.what = fmt::format("a table's text does not parse: `{}`", text),
               .got = word,
               .expected = "NAME float32|float64 keys=N width=N initial=X spread=X seed=N "
                           "per_push|per_step UPDATE"});
}

}  // namespace

size_t size_of(ValueType type) {
  return type == ValueType::float32 ? sizeof(float) : sizeof(double);
}

std::string to_text(const TableSpec& spec) {
  return fmt::format("{} {} keys={} width={} initial={} spread={} seed={} {} {}", spec.name,
                     spec.type == ValueType::float32 ? "float32" : "float64", spec.keys, spec.width,
                     spec.initial, spec.spread, spec.seed,
                     spec.application == Application::per_push ? "per_push" : "per_step",
                     to_text(spec.update));
}

TableSpec parse_table(std::string_view text) {
  const auto words = split(trim(text), ' ');
  if (words.size() < 9) refuse(text, fmt::format("{} words", words.size()));
  TableSpec spec;
  spec.name = words[0];
  if (words[1] != "float32" && words[1] != "float64") refuse(text, words[1]);
  spec.type = words[1] == "float32" ? ValueType::float32 : ValueType::float64;
  const auto value = [&](size_t word, std::string_view name) {
    if (!words[word].starts_with(std::string(name) + "=")) refuse(text, words[word]);
    return words[word].substr(name.size() + 1);
  };
  const auto integer = [&](size_t word, std::string_view name, uint64_t most) {
    const auto digits = value(word, name);
    uint64_t number = 0;
    if (digits.empty() || digits.size() > 20) refuse(text, words[word]);
    for (const char c : digits) {
      const Wide next = Wide(number) * 10 + static_cast<unsigned>(c - '0');
      if (c < '0' || c > '9' || next > most) refuse(text, words[word]);
      number = static_cast<uint64_t>(next);
    }
    return number;
  };
  const auto real = [&](size_t word, std::string_view name) {
    const auto number = parse_double(value(word, name));
    if (!number) refuse(text, words[word]);
    return *number;
  };
  spec.keys = integer(2, "keys", ~uint64_t{0});
  spec.width = static_cast<uint32_t>(integer(3, "width", ~uint32_t{0}));
  spec.initial = real(4, "initial");
  spec.spread = real(5, "spread");
  spec.seed = integer(6, "seed", ~uint64_t{0});
  if (words[7] != "per_push" && words[7] != "per_step") refuse(text, words[7]);
  spec.application = words[7] == "per_push" ? Application::per_push : Application::per_step;
  spec.update = parse_update(fmt::format("{}", fmt::join(words.begin() + 8, words.end(), " ")));
  return spec;
}

uint32_t range_of(const TableSpec& spec, Key key, uint32_t ranges) {
  if (spec.keys > 0) return static_cast<uint32_t>(Wide(key) * ranges / spec.keys);
  return static_cast<uint32_t>(Wide(mix(key)) * ranges >> 64);
}

KeySpan keys_of(const TableSpec& spec, uint32_t range, uint32_t ranges) {
  const auto begin = [&](uint32_t r) {
    return static_cast<Key>((Wide(r) * spec.keys + ranges - 1) / ranges);
  };
  return {begin(range), begin(range + 1) - begin(range)};
}

double initial_value(const TableSpec& spec, Key key, uint32_t index) {
  if (spec.spread == 0) return spec.initial;
  const uint64_t bits = mix(spec.seed ^ fingerprint(spec.name), key, index);
  return spec.initial + spec.spread * (static_cast<double>(bits >> 11) * 0x1p-52 - 1);
}

}  // namespace troika::server
