#include "troika/cluster/discovery/run_secret.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <map>

#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/cluster/ranks/rank_environment.h"

namespace troika::cluster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Variables from(const std::map<std::string, std::string>& values) {
  return [values](const std::string& name) {
    const auto value = values.find(name);
    return value == values.end() ? std::nullopt : std::optional(value->second);
  };
}

const std::string kHex(64, 'a'), kOther(64, 'b');

TEST(RunSecret, FromTheVariableElseTheFileElseTheUsersKey) {
  const TemporaryFolder folder;
  const auto file = folder / "secret";
  write_file_atomically(file, kOther);
  ::chmod(file.c_str(), 0600);
  const auto own = folder / "troika";
  const auto of_variable =
      find_secret("run", from({{kSecretVariable, kHex}, {kSecretFileVariable, file}}), own);
  EXPECT_TRUE(of_variable.secret == net::Secret::parse(kHex, "test"));
  EXPECT_EQ(of_variable.source, "TROIKA_RUN_SECRET");
  const auto of_file = find_secret("run", from({{kSecretFileVariable, file}}), own);
  EXPECT_TRUE(of_file.secret == net::Secret::parse(kOther, "test"));
  EXPECT_EQ(of_file.source, "TROIKA_RUN_SECRET_FILE=" + file.string());
  EXPECT_FALSE(std::filesystem::exists(own)) << "is made only where it is needed";
  const auto of_user = find_secret("run", from({{kSecretVariable, ""}}), own);
  EXPECT_EQ(of_user.source, (own / "run-key").string());
  EXPECT_TRUE(of_user.secret == find_secret("run", from({}), own).secret);
  EXPECT_FALSE(of_user.secret == find_secret("other run", from({}), own).secret);
  EXPECT_FALSE(of_user.secret == net::user_secret(own)) << "ranks get no key of the user's";
}

TEST(RunSecret, AWrongOneIsNamedByItsVariable) {
  try {
    find_secret("run", from({{kSecretVariable, kHex + "x"}}));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("TROIKA_RUN_SECRET holds no secret"), Not(HasSubstr("aaaa"))));
  }
}

TEST(RunSecret, EveryLaunchOfOneMachineAndEveryRoundHasItsOwn) {
  LaunchOptions options;
  const auto launch = secret_of_launch(options);
  EXPECT_FALSE(launch.secret == secret_of_launch(options).secret);
  LaunchPlace place{.address = "here", .port = 1, .run_id = "run"};
  const auto first = secret_of_round(launch.secret, place);
  EXPECT_TRUE(first == secret_of_round(launch.secret, place));
  ++place.round;
  EXPECT_FALSE(first == secret_of_round(launch.secret, place));
}

TEST(RunSecret, OneWhoWasNotTakenLearnsWhereItsSecretIsFrom) {
  const RunSecret own{net::Secret::parse(kHex, "test"), "TROIKA_RUN_SECRET"};
  const Error error = not_authenticated("rank 0 at here:1", {net::DialFailure::Kind::wrong}, own);
  EXPECT_STREQ(error.what(),
               "[cluster] could not authenticate with rank 0 at here:1; got an answer made with "
               "another run secret, expected the same run secret and version of Troika there (ours "
               "is from TROIKA_RUN_SECRET; if no launcher passes TROIKA_RUN_SECRET on, machines "
               "without a shared home folder need the same file named by TROIKA_RUN_SECRET_FILE; "
               "otherwise another run has the port)");
  EXPECT_EQ(error.kind(), ErrorKind::usage);
}

}  // namespace
}  // namespace troika::cluster
