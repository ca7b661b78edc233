#include "troika/layout/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

constexpr std::array<std::string_view, kAxes> kNames{"pipeline", "data", "tensor", "context",
                                                     "expert"};

// The text of a mesh, with its place for errors.
struct MeshText {
  std::string_view text;
  const std::string& place;
};

[[noreturn]] void refuse_mesh(const MeshText& mesh, std::string got, std::string expected,
                              std::string hint = {}) {
  refuse(fmt::format("mesh `{}`{}", mesh.text, mesh.place), std::move(got), std::move(expected),
         std::move(hint));
}

Axis parse_axis(const MeshText& mesh, std::string_view word) {
  const auto found = std::find(kNames.begin(), kNames.end(), word);
  if (found != kNames.end()) return static_cast<Axis>(found - kNames.begin());
  refuse_mesh(mesh, fmt::format("axis {}", word), fmt::format("one of {}", fmt::join(kNames, ", ")),
              fmt::format("did you mean {}?", nearest(word, {kNames.begin(), kNames.end()})));
}

int parse_size(const MeshText& mesh, std::string_view word) {
  const auto size = parse_int(word);
  if (size && *size >= 1 && *size <= std::numeric_limits<int>::max()) {
    return static_cast<int>(*size);
  }
  refuse_mesh(mesh, fmt::format("size {}", word),
              "an integer >= 1, or -1 for the rest of the world");
}

// Parses one number per stage, as in "2-1-1".
std::vector<int> parse_replicas(const MeshText& mesh, std::string_view words) {
  std::vector<int> result;
  for (const auto& word : split(words, '-')) result.push_back(parse_size(mesh, word));
  return result;
}

int checked(const MeshText& mesh, int64_t ranks) {
  if (ranks > std::numeric_limits<int>::max()) {
    refuse_mesh(mesh, fmt::format("{} ranks", ranks), "at most 2^31 - 1");
  }
  return static_cast<int>(ranks);
}

}  // namespace

std::string_view name(Axis axis) {
  return kNames[static_cast<size_t>(axis)];
}

Mesh::Mesh(Axis axis, int size) : axes_{axis} {
  TROIKA_CHECK(size >= 1, "an axis has a rank at least");
  sizes_[static_cast<size_t>(axis)] = size;
}

Mesh Mesh::parse(std::string_view text, int world, const std::string& place) {
  const MeshText written{text, place};
  Mesh mesh;
  std::optional<Axis> rest;
  for (const auto& word : split(text, ' ')) {
    if (word.empty()) continue;
    const size_t equals = word.find('=');
    const Axis axis = parse_axis(written, std::string_view(word).substr(0, equals));
    const auto value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (std::ranges::count(mesh.axes_, axis) > 0) {
      refuse_mesh(written, fmt::format("axis {} twice", name(axis)), "each axis once");
    }
    mesh.axes_.push_back(axis);
    if (value == "-1") {
      if (rest) refuse_mesh(written, "-1 for two axes", "for one at most");
      rest = axis;
    } else if (axis == Axis::data && value.find('-') != std::string::npos) {
      mesh.replicas_ = parse_replicas(written, value);
    } else {
      mesh.sizes_[static_cast<size_t>(axis)] = parse_size(written, value);
    }
  }
  int64_t others = 1;
  for (const auto axis : mesh.axes_) {
    if (axis != Axis::pipeline || !mesh.has_uneven_stages()) {
      others = checked(written, others * mesh.sizes_[static_cast<size_t>(axis)]);
    }
  }
  if (mesh.has_uneven_stages()) {
    const int stages = mesh.size(Axis::pipeline);
    if (rest == Axis::pipeline || mesh.axes_.front() != Axis::pipeline ||
        mesh.replicas_.size() != static_cast<size_t>(stages)) {
      refuse_mesh(written, fmt::format("replicas of {} stages", mesh.replicas_.size()),
                  "one number for each stage of the pipeline axis, which comes first");
    }
    const int replicas =
        checked(written, std::reduce(mesh.replicas_.begin(), mesh.replicas_.end(), int64_t{0}));
    others = checked(written, others * replicas);
    // If all numbers are equal, the mesh has a plain data axis.
    if (std::ranges::count(mesh.replicas_, mesh.replicas_.front()) == stages) {
      mesh.sizes_[static_cast<size_t>(Axis::data)] = mesh.replicas_.front();
      mesh.replicas_.clear();
    }
  }
  if (!rest || world == 0) return mesh;
  if (world % others != 0) {
    refuse_mesh(written, fmt::format("{} ranks for {} = -1", world, name(*rest)),
                fmt::format("a multiple of {}, the ranks of the other axes", others));
  }
  mesh.sizes_[static_cast<size_t>(*rest)] = static_cast<int>(world / others);
  return mesh;
}

std::string Mesh::text() const {
  std::vector<std::string> words;
  for (const auto axis : axes_) {
    words.push_back(axis == Axis::data && has_uneven_stages()
                        ? fmt::format("data={}", fmt::join(replicas_, "-"))
                        : fmt::format("{}={}", name(axis), sizes_[static_cast<size_t>(axis)]));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

int Mesh::size(Axis axis) const {
  if (axis == Axis::data && has_uneven_stages()) {
    refuse("the data axis has no size", text(), "stages with equal numbers of replicas");
  }
  return sizes_[static_cast<size_t>(axis)];
}

int Mesh::replicas(int stage) const {
  TROIKA_CHECK(stage >= 0 && stage < size(Axis::pipeline), "a stage of the mesh");
  return size_in(Axis::data, stage);
}

int Mesh::size_in(Axis axis, int stage) const {
  const bool differs = axis == Axis::data && has_uneven_stages();
  return differs ? replicas_[static_cast<size_t>(stage)] : sizes_[static_cast<size_t>(axis)];
}

int Mesh::ranks_of_stage(int stage) const {
  int product = 1;
  for (const auto axis : axes_) {
    if (axis != Axis::pipeline) product *= size_in(axis, stage);
  }
  return product;
}

int Mesh::ranks() const {
  if (!has_uneven_stages()) return size(Axis::pipeline) * ranks_of_stage(0);
  int sum = 0;
  for (int stage = 0; stage < size(Axis::pipeline); ++stage) sum += ranks_of_stage(stage);
  return sum;
}

Coordinates Mesh::coordinates(int rank) const {
  TROIKA_CHECK(rank >= 0 && rank < ranks(), fmt::format("rank {} of {}", rank, ranks()));
  Coordinates at;
  int stage = 0;
  // If stages differ, the pipeline axis is outermost: ranks are numbered stage by stage.
  if (has_uneven_stages()) {
    for (; rank >= ranks_of_stage(stage); ++stage) rank -= ranks_of_stage(stage);
    at[Axis::pipeline] = stage;
  }
  for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
    if (*axis == Axis::pipeline && has_uneven_stages()) continue;
    at[*axis] = rank % size_in(*axis, stage);
    rank /= size_in(*axis, stage);
  }
  return at;
}

int Mesh::rank(const Coordinates& at) const {
  const int stage = has_uneven_stages() ? at[Axis::pipeline] : 0;
  int before = 0;  // ranks of earlier stages
  int rank = 0;
  for (size_t i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    const int limit = axis == Axis::pipeline ? size(axis) : size_in(axis, stage);
    TROIKA_CHECK(at[axis] >= 0 && at[axis] < limit,
                 fmt::format("{} {} of {}", name(axis), at[axis], limit));
  }
  for (const auto axis : axes_) {
    if (axis == Axis::pipeline && has_uneven_stages()) {
      for (int s = 0; s < stage; ++s) before += ranks_of_stage(s);
    } else {
      rank = rank * size_in(axis, stage) + at[axis];
    }
  }
  return before + rank;
}

std::optional<int> Mesh::find(const Coordinates& at) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (coordinates(rank) == at) return rank;
  }
  return std::nullopt;
}

bool Mesh::has_places_of(const Mesh& other) const {
  if (ranks() != other.ranks()) return false;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (coordinates(rank) != other.coordinates(rank)) return false;
  }
  return true;
}

std::vector<int> Mesh::group(int rank, const std::vector<Axis>& axes) const {
  const auto spans = [&](Axis axis) { return std::ranges::count(axes, axis) > 0; };
  if (has_uneven_stages() && spans(Axis::pipeline) && !spans(Axis::data)) {
    refuse("no group along the pipeline axis alone", text(),
           "stages with equal numbers of replicas, or the data axis with it");
  }
  const auto own = coordinates(rank);
  std::vector<int> result;
  for (int other = 0; other < ranks(); ++other) {
    const auto at = coordinates(other);
    const bool belongs =
        std::ranges::all_of(axes_, [&](Axis axis) { return spans(axis) || at[axis] == own[axis]; });
    if (belongs) result.push_back(other);
  }
  return result;
}

std::string Mesh::place(int rank) const {
  const auto at = coordinates(rank);
  std::vector<std::string> places;
  for (const auto axis : axes_) places.push_back(fmt::format("{} {}", name(axis), at[axis]));
  return fmt::format("{}", fmt::join(places, ", "));
}

std::string Mesh::describe(int rank) const {
  const auto at = place(rank);
  return at.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} = {}", rank, at);
}

}  // namespace troika::layout
