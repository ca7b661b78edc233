#include "troika/server/update.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::server {

namespace {

// A number of an update rule: its name in texts, and the kinds that use it.
struct Number {
  const char* name;
  double UpdateSpec::*member;
  std::vector<UpdateKind> kinds;
  bool is_always_written = true;  // also with its default
};

const std::vector<Number>& numbers() {
  using enum UpdateKind;
  static const std::vector<Number> all{
      {"rate", &UpdateSpec::rate, {sgd, momentum, adagrad, adam, adamw, proximal_l1}},
      {"momentum", &UpdateSpec::momentum, {momentum}},
      {"beta1", &UpdateSpec::beta1, {adam, adamw}},
      {"beta2", &UpdateSpec::beta2, {adam, adamw}},
      {"epsilon", &UpdateSpec::epsilon, {adagrad, adam, adamw}},
      {"l1", &UpdateSpec::l1, {proximal_l1}},
      {"weight_decay", &UpdateSpec::weight_decay, {sgd, momentum, adagrad, adam, adamw}, false},
      {"nesterov", &UpdateSpec::nesterov, {momentum}, false},
      {"scale",
       &UpdateSpec::scale,
       {sum, sgd, momentum, adagrad, adam, adamw, proximal_l1, user},
       false},
  };
  return all;
}

constexpr std::array<std::pair<const char*, UpdateKind>, 8> kKinds{{
    {"sum", UpdateKind::sum},
    {"sgd", UpdateKind::sgd},
    {"momentum", UpdateKind::momentum},
    {"adagrad", UpdateKind::adagrad},
    {"adam", UpdateKind::adam},
    {"adamw", UpdateKind::adamw},
    {"proximal_l1", UpdateKind::proximal_l1},
    {"user", UpdateKind::user},
}};

bool uses(const Number& number, UpdateKind kind) {
  return std::ranges::find(number.kinds, kind) != number.kinds.end();
}

template <typename T>
void apply(const UpdateSpec& spec, const Segment<T>& s) {
  const double learning_rate = s.rate.value_or(spec.rate);
  const T scale = static_cast<T>(spec.scale), rate = static_cast<T>(learning_rate);
  const bool is_decoupled = spec.kind == UpdateKind::adamw;
  const T decay = static_cast<T>(is_decoupled ? 0 : spec.weight_decay);
  const size_t n = s.values.size();
  const auto each = [&](auto&& rule) {
    for (size_t i = 0; i < n; ++i) {
      const T g = scale * s.pushed[i];
      rule(s.values[i], decay == 0 ? g : g + decay * s.values[i], i);
    }
  };
  switch (spec.kind) {
    case UpdateKind::sum:
      return each([](T& w, T g, size_t) { w += g; });
    case UpdateKind::sgd:
      return each([&](T& w, T g, size_t) { w -= rate * g; });
    case UpdateKind::momentum: {
      const T momentum = static_cast<T>(spec.momentum);
      const bool is_nesterov = spec.nesterov != 0;
      return each([&](T& w, T g, size_t i) {
        T& v = s.state[i];
        v = momentum * v + g;
        w -= rate * (is_nesterov ? g + momentum * v : v);
      });
    }
    case UpdateKind::adagrad: {
      const T epsilon = static_cast<T>(spec.epsilon);
      return each([&](T& w, T g, size_t i) {
        s.state[i] += g * g;
        w -= rate * (g / (std::sqrt(s.state[i]) + epsilon));
      });
    }
    case UpdateKind::adam:
    case UpdateKind::adamw: {
      const T beta1 = static_cast<T>(spec.beta1), beta2 = static_cast<T>(spec.beta2);
      const T epsilon = static_cast<T>(spec.epsilon);
      const double t = static_cast<double>(s.updates);
      const T step = static_cast<T>(learning_rate / (1 - std::pow(spec.beta1, t)));
      const T root = static_cast<T>(std::sqrt(1 - std::pow(spec.beta2, t)));
      const T shrink = static_cast<T>(is_decoupled ? 1 - learning_rate * spec.weight_decay : 1);
      return each([&](T& w, T g, size_t i) {
        T& m = s.state[i];
        T& v = s.state[n + i];
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        w = shrink * w - step * m / (std::sqrt(v) / root + epsilon);
      });
    }
    case UpdateKind::proximal_l1: {
      const T threshold = static_cast<T>(learning_rate * spec.l1);
      return each([&](T& w, T g, size_t) {
        const T u = w - rate * g;
        w = std::copysign(std::max(std::abs(u) - threshold, T(0)), u);
      });
    }
    case UpdateKind::user:
      break;
  }
}

// The user's function sees the pushed values times `scale`.
template <typename T>
std::function<void(const Segment<T>&)> scaled(std::function<void(const Segment<T>&)> function,
                                              double scale) {
  if (scale == 1 || !function) return function;
  return [function = std::move(function), scale](const Segment<T>& segment) {
    std::vector<T> pushed(segment.pushed.begin(), segment.pushed.end());
    for (T& value : pushed) value *= static_cast<T>(scale);
    Segment<T> copy = segment;
    copy.pushed = pushed;
    function(copy);
  };
}

}  // namespace

std::optional<int> states_of(const UpdateSpec& spec) {
  switch (spec.kind) {
    case UpdateKind::adam:
    case UpdateKind::adamw:
      return 2;
    case UpdateKind::momentum:
    case UpdateKind::adagrad:
      return 1;
    case UpdateKind::user:
      return std::nullopt;
    default:
      return 0;
  }
}

std::string to_text(const UpdateSpec& spec) {
  std::string text;
  for (const auto& [name, kind] : kKinds) {
    if (kind == spec.kind) text = name;
  }
  if (spec.kind == UpdateKind::user) text += " name=" + spec.user;
  for (const auto& number : numbers()) {
    const double value = spec.*number.member;
    const bool is_default = value == UpdateSpec{}.*number.member;
    if (uses(number, spec.kind) && (number.is_always_written || !is_default))
      text += fmt::format(" {}={}", number.name, value);
  }
  return text;
}

UpdateSpec parse_update(std::string_view text) {
  const auto words = split(trim(text), ' ');
  UpdateSpec spec;
  std::vector<std::string> names;
  for (const auto& [name, kind] : kKinds) names.push_back(name);
  const auto found = std::ranges::find(names, words[0]);
  if (found == names.end()) {
    throw Error("server", ErrorKind::usage,
                {.what = "unknown update rule",
                 .got = words[0],
                 .expected = fmt::format("{}", fmt::join(names, ", ")),
                 .hint = "did you mean " + nearest(words[0], names) + "?"});
  }
  spec.kind = kKinds[static_cast<size_t>(found - names.begin())].second;
  for (size_t i = 1; i < words.size(); ++i) {
    const auto at = words[i].find('=');
    const auto name = words[i].substr(0, at);
    const auto value = at == std::string::npos ? "" : words[i].substr(at + 1);
    if (name == "name" && spec.kind == UpdateKind::user) {
      spec.user = value;
      continue;
    }
    const auto number = std::ranges::find_if(
        numbers(), [&](const Number& n) { return n.name == name && uses(n, spec.kind); });
    const auto parsed = parse_double(value);
    if (number == numbers().end() || !parsed) {
      throw Error("server", ErrorKind::usage,
                  {.what = "update rule " + words[0] + " does not take this",
                   .got = words[i],
                   .expected = "name=number, as in `" + to_text(UpdateSpec{spec.kind}) + "`"});
    }
    spec.*number->member = *parsed;
  }
  return spec;
}

Update make_update(const UpdateSpec& spec, const UserUpdates& user) {
  if (spec.kind == UpdateKind::user) {
    const auto found = user.find(spec.user);
    if (found == user.end()) {
      throw Error("server", ErrorKind::usage,
                  {.what = "the server does not know the update function",
                   .got = spec.user,
                   .expected = "a name in ServerOptions::updates"});
    }
    Update update = found->second;
    update.apply32 = scaled(std::move(update.apply32), spec.scale);
    update.apply64 = scaled(std::move(update.apply64), spec.scale);
    return update;
  }
  Update update;
  update.states = *states_of(spec);
  update.merges = update.states == 0;
  update.apply32 = [spec](const Segment<float>& segment) { apply(spec, segment); };
  update.apply64 = [spec](const Segment<double>& segment) { apply(spec, segment); };
  return update;
}

}  // namespace troika::server
