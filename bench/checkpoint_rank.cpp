// checkpoint_rank FOLDER MEGABYTES ROUNDS, on the ranks that a launcher started: compares writing
// and reading a checkpoint with writing and reading the same number of plain bytes. All ranks hold
// the same tensors, as in data parallelism: parameters and Adam's two states. In a round, the ranks
// save a checkpoint, each rank writes as many plain bytes as it wrote of the checkpoint, and both
// are read. The plain files are synced like those of a checkpoint; reads come from the page cache.
// Rank 0 prints JSON with each round's seconds, from a barrier to a barrier.
#include <ATen/ATen.h>
#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/checkpoint/reader.h"
#include "troika/checkpoint/resume.h"
#include "troika/comm/world/world.h"

namespace troika::checkpoint {
namespace {

constexpr int64_t kPieceBytes = 1 << 20;

RankState make_state(int64_t megabytes) {
  constexpr int64_t kTensors = 16;
  const int64_t elements = megabytes * 1'000'000 / (4 * 3 * kTensors);
  RankState state;
  for (int64_t i = 0; i < kTensors; ++i) {
    const auto name = "layer." + std::to_string(i) + ".weight";
    const auto tensor = [&](int64_t kind) {
      return at::arange(elements, at::kFloat).mul_(double(1 + kind + 3 * i));
    };
    state.model.emplace_back(name, tensor(0));
    state.rest.emplace_back("optimizer.state." + name + ".exp_avg", tensor(1));
    state.rest.emplace_back("optimizer.state." + name + ".exp_avg_sq", tensor(2));
  }
  return state;
}

class Bench {
 public:
  Bench(const comm::Group& group, std::filesystem::path folder, int64_t megabytes)
      : group_(group), folder_(std::move(folder)), state_(make_state(megabytes)) {}

  nlohmann::json round() {
    nlohmann::json row;
    std::filesystem::path checkpoint;
    row["checkpoint_write"] = seconds(
        [&] { checkpoint = save_checkpoint(group_, folder_ / "checkpoints", state_, {}, {}); });
    bytes_ = 0;
    for (const auto& [name, file] : read_index(checkpoint).files) {
      const bool is_own = name == rank_file(group_.rank());
      if (is_own || (name == kWeightsFile && group_.rank() == 0)) bytes_ += file.bytes;
    }
    row["raw_write"] = seconds([&] { write(); });
    row["checkpoint_read"] = seconds([&] {
      const CheckpointReader saved(checkpoint, group_.rank());
      for (const auto& name : saved.names("")) saved.read(name);
    });
    row["raw_read"] = seconds([&] { read(checkpoint); });
    std::filesystem::remove(raw_file());
    group_.barrier();
    if (group_.rank() == 0) remove_checkpoint(checkpoint);
    group_.barrier();
    return row;
  }

 private:
  double seconds(const std::function<void()>& body) const {
    group_.barrier();
    const Stopwatch watch;
    body();
    group_.barrier();
    return watch.seconds();
  }

  std::filesystem::path raw_file() const {
    return folder_ / ("raw-" + std::to_string(group_.rank()));
  }

  // Writes from the tensors' memory, as a checkpoint does.
  void write() const {
    const File file(raw_file(), O_WRONLY | O_CREAT | O_EXCL);
    int64_t left = bytes_;
    for (const auto* tensors : {&state_.model, &state_.rest}) {
      for (const auto& [name, tensor] : *tensors) {
        const auto bytes = std::min(left, static_cast<int64_t>(tensor.nbytes()));
        file.write({static_cast<const char*>(tensor.data_ptr()), static_cast<size_t>(bytes)});
        left -= bytes;
      }
    }
    file.sync();
    sync_path(folder_);
  }

  // Reads every file of the checkpoint, because each rank reads all tensors that were written once.
  void read(const std::filesystem::path& checkpoint) const {
    for (const auto& [name, written] : read_index(checkpoint).files) {
      const File file(checkpoint / name, O_RDONLY);
      const auto whole = at::empty({written.bytes}, at::kByte);
      const std::span<char> bytes(static_cast<char*>(whole.data_ptr()), whole.nbytes());
      for (int64_t begin = 0; begin < written.bytes; begin += kPieceBytes) {
        const auto size = std::min(kPieceBytes, written.bytes - begin);
        file.read_at(begin, bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(size)));
      }
    }
  }

  const comm::Group& group_;
  const std::filesystem::path folder_;
  const RankState state_;
  int64_t bytes_ = 0;  // that this rank has written of the last checkpoint
};

}  // namespace
}  // namespace troika::checkpoint

int main(int argc, char** argv) try {
  using namespace troika;
  if (argc != 4) return 2;
  const auto group = comm::world();
  make_folder(argv[1]);
  checkpoint::Bench bench(group, argv[1], std::atoll(argv[2]));
  bench.round();  // whose pages are new
  auto rounds = nlohmann::json::array();
  for (int i = 0; i < std::atoi(argv[3]); ++i) rounds.push_back(bench.round());
  if (group.rank() == 0) std::printf("%s\n", rounds.dump().c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return troika::exit_code(error);
}
