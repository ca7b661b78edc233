#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/comm/core.h"

namespace troika::comm {

namespace {

// A rank's choice, for the others.
struct Choice {
  int64_t color, key, next_id;
  std::array<uint64_t, Lifeline::kTagSpaces / 64> tag_spaces;
};
constexpr int64_t kChoiceWords = sizeof(Choice) / sizeof(int64_t);
static_assert(kMaxGroups < Lifeline::kTagSpaces);

Choice choice_of(int color, int key, const Lifeline& lifeline) {
  Choice choice{color, key, lifeline.next_id(), {}};
  const auto taken = lifeline.tag_spaces();
  for (size_t i = 0; i < taken.size(); ++i) {
    choice.tag_spaces[i / 64] |= uint64_t{taken[i]} << i % 64;
  }
  return choice;
}

// One that is free on all members, and was not used for as long as possible.
uint32_t choose_tag_space(std::span<const Choice* const> members, int64_t id, uint32_t spaces) {
  const auto is_free = [&](uint32_t space) {
    return std::ranges::none_of(members, [&](const Choice* choice) {
      return choice->tag_spaces[space / 64] >> space % 64 & 1;
    });
  };
  for (uint32_t i = 0; i < spaces; ++i) {
    const auto space = static_cast<uint32_t>((id - 1 + i) % spaces) + 1;
    if (is_free(space)) return space;
  }
  throw Error("comm", ErrorKind::usage,
              {.what = "too many groups at a time",
               .got = fmt::format("{} and one more", spaces),
               .expected = fmt::format("at most {} besides the world, on any rank", spaces)});
}

}  // namespace

std::optional<Group> Group::split(int color, int key, Site site) const {
  auto& impl = core_->impl();
  // Everybody learns who goes where, and of numbers that no member has seen yet.
  Choice own = choice_of(color, key, *impl.lifeline());
  const auto table = at::empty({size(), kChoiceWords}, at::kLong);
  all_gather(table, at::from_blob(&own, {kChoiceWords}, at::kLong), {}, {.label = "split"}, site);
  const auto* choices = static_cast<const Choice*>(table.data_ptr());
  if (color < 0) return std::nullopt;
  std::vector<int> members;
  std::vector<const Choice*> theirs;
  int64_t id = 0;
  for (int r = 0; r < size(); ++r) {
    if (choices[r].color != color) continue;
    members.push_back(r);
    theirs.push_back(&choices[r]);
    id = std::max(id, choices[r].next_id);
  }
  std::ranges::stable_sort(members, {}, [&](int r) { return choices[r].key; });
  impl.lifeline()->take_id(id);

  const Station& whole = impl.station();
  Station station{.backend = whole.backend,
                  .size = static_cast<int>(members.size()),
                  .id = static_cast<uint32_t>(id),
                  .tag_space = choose_tag_space(theirs, id, whole.tag_spaces),
                  .tag_spaces = whole.tag_spaces,
                  .any_thread = whole.any_thread,
                  .receives_any = whole.receives_any,
                  .takes_cuda = false};
  for (size_t m = 0; m < members.size(); ++m) {
    const auto r = static_cast<size_t>(members[m]);
    if (members[m] == rank()) station.rank = static_cast<int>(m);
    station.nodes.push_back(whole.nodes[r]);
    station.world_ranks.push_back(whole.world_ranks[r]);
  }
  std::shared_ptr<GroupImpl> part;
  core_->guarded([&] {
    part = impl.split(core_->shared_impl(), std::move(station), members, core_->deadline());
  });
  Group group(std::move(part), options());
  const bool is_all = group.size() == size();
  if (is_all) group.core_->collectives().assume(core_->collectives().known_links());
  return group;
}

}  // namespace troika::comm
