#include "troika/base/text.h"

#include <gmock/gmock.h>

namespace troika {
namespace {

TEST(Text, NearestIsByEditDistance) {
  EXPECT_EQ(nearest("devcies", {"lr", "devices", "nodes"}), "devices");
  EXPECT_EQ(nearest("x", {}), "");
}

TEST(Text, NearestIsByMeaningToo) {
  EXPECT_EQ(nearest("AdamW", {"sgd", "adam", "adamw", "adamw_8bit"}), "adamw");
  EXPECT_EQ(nearest("val_loss", {"train/loss", "validation/accuracy", "validation/loss"}),
            "validation/loss");
  EXPECT_EQ(nearest("val_acc", {"train/loss", "validation/accuracy", "validation/loss"}),
            "validation/accuracy");
  EXPECT_EQ(nearest("batch-size", {"data.global_batch_size", "data.batch_size", "data.path"}),
            "data.batch_size");
  EXPECT_EQ(nearest("lr", {"run.dir", "optim.beta1", "optim.lr"}), "optim.lr");
  EXPECT_EQ(nearest("max-epochs", {"trainer.max_steps", "trainer.max_epochs"}),
            "trainer.max_epochs");
}

TEST(Text, ParsesWholeNumbersOnly) {
  EXPECT_EQ(parse_int("12"), 12);
  EXPECT_EQ(parse_int("12x"), std::nullopt);
  EXPECT_EQ(parse_int(""), std::nullopt);
  EXPECT_EQ(parse_double("1e-3"), 1e-3);
  EXPECT_EQ(parse_double("1,5"), std::nullopt);
}

TEST(Text, ParsesBytes) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("6GiB"), int64_t{6} << 30);
  EXPECT_EQ(parse_bytes("1.5 mb"), 3 << 19);
  EXPECT_EQ(parse_bytes("2K"), 2048);
  for (const char* bad : {"", "GiB", "-1", "1 PiB", "1.5.1", "6 GiB 2", "9000000T"}) {
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
  }
}

TEST(Text, SplitsAndTrims) {
  EXPECT_THAT(split("a,,b", ','), testing::ElementsAre("a", "", "b"));
  EXPECT_THAT(split("", ','), testing::ElementsAre(""));
  EXPECT_EQ(trim("  a b\n"), "a b");
  EXPECT_EQ(trim(" \t"), "");
}

TEST(Text, LongTextsAreShortened) {
  EXPECT_EQ(shortened(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(shortened(std::string(81, 'x')), std::string(80, 'x') + "...");
}

TEST(Text, HumanUnits) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_seconds(59.2), "59 s");
  EXPECT_EQ(human_seconds(75), "1:15");
  EXPECT_EQ(human_seconds(3700), "1:01:40");
}

}  // namespace
}  // namespace troika
