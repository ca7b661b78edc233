#include "troika/layout/schedules/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "troika/base/text.h"
#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

using Kind = ActionKind;

struct KindName {
  std::string_view word;
  std::string_view meaning;  // for errors
};

constexpr std::array<KindName, 11> kKinds{{{"F", "forward"},
                                           {"B", "backward"},
                                           {"I", "backward for inputs"},
                                           {"W", "backward for weights"},
                                           {"SEND_F", "activations sent"},
                                           {"RECV_F", "activations received"},
                                           {"SEND_B", "gradients sent"},
                                           {"RECV_B", "gradients received"},
                                           {"GATHER", "parameters gathered"},
                                           {"REDUCE", "gradients reduced"},
                                           {"STEP", "optimizer step"}}};

// PyTorch's mark for a forward pass that overlaps a backward pass.
constexpr std::string_view kOverlap = "OVERLAP_F_B";
// Ours, for two forward passes.
constexpr std::string_view kForwardOverlap = "OVERLAP_F_F";

const KindName& name_of(Kind kind) {
  return kKinds[static_cast<size_t>(kind)];
}

bool has_micro_batch(Kind kind) {
  return kind < Kind::gather;
}

bool is_send(Kind kind) {
  return kind == Kind::send_activation || kind == Kind::send_gradient;
}

// Whether the message goes from a stage to a later one (as activations), not to an earlier one.
bool goes_up(Kind kind) {
  return kind == Kind::send_activation || kind == Kind::receive_gradient;
}

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

std::optional<int> parse_number(std::string_view text) {
  constexpr int64_t kMost = 1'000'000;
  if (text.empty() || !std::ranges::all_of(text, is_digit)) return std::nullopt;
  const auto number = parse_int(text);
  if (!number || *number > kMost) return std::nullopt;
  return static_cast<int>(*number);
}

// Reads the stage after > or < in a message that skips stages. Returns nothing if it is invalid.
std::optional<Action> with_peer(Action action, char mark, std::string_view peer) {
  const auto stage = parse_number(peer);
  if (!is_message(action.kind) || !stage) return std::nullopt;
  if (mark != (is_send(action.kind) ? '>' : '<')) return std::nullopt;
  if (goes_up(action.kind) ? *stage < action.stage + 2 : *stage > action.stage - 2) {
    return std::nullopt;
  }
  action.peer = *stage;
  return action;
}

std::optional<Action> parse_action(std::string_view word) {
  const auto mark = std::ranges::find_if(word, [](char c) { return c == '<' || c == '>'; });
  const std::string_view whole(word.begin(), mark);
  const auto begin = std::ranges::find_if_not(whole, is_digit);
  auto end = whole.end();
  while (end != begin && is_digit(end[-1])) --end;
  const auto kind = std::ranges::find(kKinds, std::string_view(begin, end), &KindName::word);
  const auto stage = parse_number({whole.begin(), begin});
  if (kind == kKinds.end() || !stage) return std::nullopt;
  Action action{static_cast<Kind>(kind - kKinds.begin()), *stage};
  if (has_micro_batch(action.kind)) {
    const auto micro_batch = parse_number({end, whole.end()});
    if (!micro_batch) return std::nullopt;
    action.micro_batch = *micro_batch;
  } else if (end != whole.end()) {
    return std::nullopt;
  }
  if (mark == word.end()) return action;
  return with_peer(action, *mark, {mark + 1, word.end()});
}

bool is_overlap(const std::vector<Action>& group) {
  return group.size() == 2 && group[0].kind == Kind::forward && group[1].kind == Kind::backward;
}

// Reads one action, or several in parentheses. Returns nothing if the word is invalid.
std::vector<Action> parse_word(std::string_view word) {
  std::vector<Action> group;
  if (!word.starts_with('(')) {
    if (const auto action = parse_action(word)) group.push_back(*action);
    return group;
  }
  const size_t end = word.find(')');
  if (end == std::string_view::npos) return {};
  for (const auto& part : split(word.substr(1, end - 1), ';')) {
    const auto action = parse_action(part);
    if (!action) return {};
    group.push_back(*action);
    group.back().joined = true;
  }
  const bool is_batch = group.size() > 1 && std::ranges::all_of(group, [](const Action& action) {
                          return is_message(action.kind);
                        });
  const auto mark = word.substr(end + 1);
  if (!(is_batch && mark.empty()) && !(is_overlap(group) && mark == kOverlap)) return {};
  group.back().joined = false;
  return group;
}

[[noreturn]] void refuse_word(std::string_view name, size_t line, size_t rank,
                              const std::string& word) {
  std::vector<std::string_view> words;
  for (const auto& kind : kKinds) words.push_back(kind.word);
  refuse(fmt::format("line {} of {} (rank {})", line, name, rank), shortened(word),
         fmt::format("STAGE KIND MICRO-BATCH as 0F2, with one of the kinds {}, or several in "
                     "parentheses as (0F3;7B1){} or (0SEND_F1;0RECV_B0)",
                     fmt::join(words, ", "), kOverlap));
}

}  // namespace

bool is_pass(ActionKind kind) {
  return kind <= Kind::backward_weight;
}

bool is_message(ActionKind kind) {
  return kind >= Kind::send_activation && kind <= Kind::receive_gradient;
}

int peer_stage(const Action& message) {
  if (message.peer >= 0) return message.peer;
  return goes_up(message.kind) ? message.stage + 1 : message.stage - 1;
}

Action partner_of(const Action& message) {
  Action partner{message.kind, peer_stage(message), message.micro_batch};
  const auto kind = static_cast<int>(message.kind);
  partner.kind = static_cast<Kind>(is_send(message.kind) ? kind + 1 : kind - 1);
  if (message.peer >= 0) partner.peer = message.stage;
  return partner;
}

std::string text_of(const Action& action) {
  const auto word = name_of(action.kind).word;
  auto text = fmt::format("{}{}", action.stage, word);
  if (has_micro_batch(action.kind)) text += std::to_string(action.micro_batch);
  if (action.peer >= 0) {
    text += fmt::format("{}{}", is_send(action.kind) ? '>' : '<', action.peer);
  }
  return text;
}

std::string describe(const Action& action) {
  auto text =
      fmt::format("{} ({}, stage {}", text_of(action), name_of(action.kind).meaning, action.stage);
  if (has_micro_batch(action.kind)) text += fmt::format(", micro-batch {}", action.micro_batch);
  return text + ")";
}

Schedule Schedule::parse(std::string_view text, std::string_view name) {
  Schedule schedule;
  size_t number = 0;
  for (auto& line : split(text, '\n')) {
    ++number;
    for (char& c : line) {
      if (c == ',' || c == '\t' || c == '\r') c = ' ';
    }
    if (trim(line).empty() || trim(line).starts_with('#')) continue;
    auto& actions = schedule.ranks.emplace_back();
    for (const auto& word : split(trim(line), ' ')) {
      if (word.empty()) continue;
      const auto group = parse_word(word);
      if (group.empty()) refuse_word(name, number, schedule.ranks.size() - 1, word);
      actions.insert(actions.end(), group.begin(), group.end());
    }
  }
  return schedule;
}

std::string Schedule::text() const {
  std::string text;
  for (const auto& actions : ranks) {
    bool is_inside = false;  // inside parentheses
    for (size_t i = 0; i < actions.size(); ++i) {
      const auto& action = actions[i];
      if (i > 0) text += is_inside ? ';' : ' ';
      if (action.joined && !is_inside) text += '(';
      text += text_of(action);
      if (is_inside && !action.joined) {
        text += ')';
        if (is_pass(action.kind)) {
          text += action.kind == ActionKind::forward ? kForwardOverlap : kOverlap;
        }
      }
      is_inside = action.joined;
    }
    text += '\n';
  }
  return text;
}

Schedule one_stage(int micro_batches, int together) {
  Schedule schedule;
  auto& actions = schedule.ranks.emplace_back();
  for (int first = 0; first < micro_batches; first += together) {
    const int end = std::min(first + together, micro_batches);
    for (const auto kind : {Kind::forward, Kind::backward}) {
      for (int m = first; m < end; ++m) actions.push_back({kind, 0, m});
    }
  }
  actions.push_back({Kind::reduce, 0});
  actions.push_back({Kind::step, 0});
  return schedule;
}

}  // namespace troika::layout
