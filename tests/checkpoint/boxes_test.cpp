// Tensors of a checkpoint can be written as any boxes, and read by any box.
#include <random>

#include "tests/checkpoint/damaged_checkpoint.h"
#include "tests/checkpoint/read_bytes.h"
#include "tests/layout/random_boxes.h"
#include "tests/support/errors.h"
#include "troika/layout/plan.h"

namespace troika::checkpoint {
namespace {

using layout::Box;
using testing::HasSubstr;

constexpr int64_t kRows = 8, kColumns = 6;

at::Tensor whole() {
  return at::arange(kRows * kColumns).view({kRows, kColumns});
}

// Returns the elements of the tensor that are in the box, in the box's shape.
at::Tensor part(const at::Tensor& tensor, const Box& box) {
  at::Tensor result = tensor;
  for (size_t d = 0; d < box.size.size(); ++d) {
    result = result.narrow(static_cast<int64_t>(d), box.offset[d], box.size[d]);
  }
  return box.flat ? result.reshape({-1}).slice(0, box.flat->begin, box.flat->end) : result;
}

class BoxesOfRanks : public Integrity {
 protected:
  // Rank r has the box `boxes[r]` of the tensor "t".
  std::filesystem::path save_boxes(const std::vector<std::string>& boxes) {
    comm::local::run(static_cast<int>(boxes.size()), [&](const comm::Group& group) {
      const auto box = Box::parse(boxes[static_cast<size_t>(group.rank())]);
      const RankState state{.model = {}, .rest = {{"t", part(whole(), box), box}}};
      save_checkpoint(group, folder_.path(), state, {}, {});
    });
    return find_checkpoint(folder_.path(), "last");
  }
};

TEST_F(BoxesOfRanks, AreReadByAnyBox) {
  // Two ranks of ZeRO share the columns of one rank of a tensor axis, two others halve the rest.
  const std::vector<std::string> boxes{"t(8,6)[0:8,0:3]{0:10}", "t(8,6)[0:8,0:3]{10:24}",
                                       "t(8,6)[0:4,3:6]", "t(8,6)[4:8,3:6]"};
  const CheckpointReader saved(save_boxes(boxes), 2);
  EXPECT_TRUE(saved.read("t").equal(whole()));
  const auto wanted = saved.read(Box::parse("t(8,6)[2:6,0:4]"));
  EXPECT_TRUE(wanted.equal(whole().slice(0, 2, 6).slice(1, 0, 4)));
  std::mt19937 random(11);
  for (int i = 0; i < 1000; ++i) {
    auto box = layout::random_box(random, {kRows, kColumns});
    box.name = "t";
    ASSERT_TRUE(saved.read(box).equal(part(whole(), box))) << box.text();
  }
}

TEST_F(BoxesOfRanks, OpenOnlyFilesThatHoldSomeOfTheBox) {
  const auto checkpoint = save_boxes({"t(8,6)[0:8,0:3]", "t(8,6)[0:8,3:6]"});
  std::filesystem::remove(checkpoint / rank_file(1));
  const CheckpointReader saved(checkpoint, 0);
  const auto box = Box::parse("t(8,6)[1:7,1:3]");
  EXPECT_TRUE(saved.read(box).equal(part(whole(), box)));
  EXPECT_THAT(message_of([&] { saved.read(Box::parse("t(8,6)[1:7,2:4]")); }),
              HasSubstr("got no rank-1.safetensors"));
}

// The 3 ranks of a tensor axis pad 8 rows to 9, and the columns by 4.
TEST_F(BoxesOfRanks, PaddingIsNotStored) {
  comm::local::run(3, [&](const comm::Group& group) {
    const int64_t first = 3 * group.rank(), rows = std::min<int64_t>(3, kRows - first);
    auto box = Box::whole("t", {kRows, kColumns});
    box.offset[0] = first;
    box.size[0] = rows;
    const auto padded = at::full({3, kColumns + 4}, -1, at::kLong);
    padded.slice(0, 0, rows).slice(1, 0, kColumns).copy_(part(whole(), box));
    const auto flat = Box::range("f", {5}, {0, group.rank() == 0 ? 5 : 0});
    const RankState state{.model = {}, .rest = {{"t", padded, box}, {"f", at::arange(7), flat}}};
    save_checkpoint(group, folder_.path(), state, {}, {});
  });
  const CheckpointReader saved(find_checkpoint(folder_.path(), "last"), 0);
  EXPECT_TRUE(saved.read("t").equal(whole()));
  EXPECT_TRUE(saved.read("f").equal(at::arange(5)));
  EXPECT_EQ(load_safetensors(saved.path() / rank_file(2))[0].second.sizes(),
            (at::IntArrayRef{2, kColumns}));
}

// Rows of two chunks each.
TEST_F(BoxesOfRanks, OnlyTheirChunksAreRead) {
  constexpr int64_t kWide = 2 * kChunkBytes / 4;
  comm::local::run(1, [&](const comm::Group& group) {
    save_checkpoint(
        group, folder_.path(),
        {.model = {{"w", at::arange(3 * kWide, at::kFloat).view({3, kWide})}}, .rest = {}}, {}, {});
  });
  const CheckpointReader saved(find_checkpoint(folder_.path(), "last"), 0);
  const auto column = [](int64_t begin, int64_t end) {
    return Box{
        .name = "model.w", .shape = {3, kWide}, .offset = {0, begin}, .size = {3, end - begin}};
  };
  saved.read(column(0, 1));        // opens the file
  constexpr int64_t kProc = 4096;  // of bytes_read() itself
  for (const auto& [begin, end, chunks] : {std::tuple{int64_t{5}, int64_t{7}, 3},
                                           {kWide - 1, kWide, 3},
                                           {kWide / 2 - 1, kWide / 2 + 1, 6}}) {
    const int64_t before = bytes_read();
    const auto found = saved.read(column(begin, end));
    EXPECT_LE(bytes_read() - before, chunks * kChunkBytes + kProc) << begin;
    for (int64_t row = 0; row < 3; ++row) {
      EXPECT_TRUE(found[row].equal(at::arange(row * kWide + begin, row * kWide + end, at::kFloat)));
    }
  }
}

TEST_F(BoxesOfRanks, ThePlanStandsInTheIndex) {
  const auto save_with = [&](const std::string& plan) {
    comm::local::run(2, [&](const comm::Group& group) {
      save_checkpoint(group, folder_.path(), {.model = {{"w", at::ones({2})}}, .rest = {}}, {},
                      {.plan = plan});
    });
    return CheckpointReader(find_checkpoint(folder_.path(), "last"), 0).mesh().text();
  };
  const layout::Plan plan{.mesh = layout::Mesh::parse("tensor=2")};
  EXPECT_EQ(save_with(plan.text()), "tensor=2");
  EXPECT_EQ(save_with(""), "data=2");
  const layout::Plan another{.mesh = layout::Mesh::parse("tensor=4")};
  EXPECT_THAT(message_of([&] { save_with(another.text()); }),
              HasSubstr("got index.json with a plan for 4 ranks, expected 2"));
}

}  // namespace
}  // namespace troika::checkpoint
