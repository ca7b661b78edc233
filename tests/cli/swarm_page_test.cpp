// The page of `troika swarm monitor --http` in a browser. Its peer is of this process, and a
// stranger.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "tests/cli/process.h"
#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/net/http_server.h"
#include "troika/net/secret.h"
#include "troika/net/socket.h"
#include "troika/net/tcp_endpoint.h"
#include "troika/swarm/contact.h"
#include "troika/swarm/peer.h"
#include "troika/swarm/peer_report.h"

namespace troika {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr Milliseconds kPatience{60'000};
constexpr const char* kScript = "<script>document.title='hit'</script>";
constexpr const char* kImage = "<img src=x onerror=document.title=1>\x1b[2J";

// For a copy of the page. When the table is there, it writes what it finds into the title.
constexpr const char* kSurveyOfTable = R"(<script>
const waiting = setInterval(() => {
  const rows = [...document.querySelectorAll('#peers tr')];
  if (rows.length < 2) return;
  clearInterval(waiting);
  const style = getComputedStyle(document.body);
  document.title = JSON.stringify({
    window: innerWidth, width: document.documentElement.scrollWidth,
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    page: style.backgroundColor, text: style.color,
    clipped: [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth).length,
    columns: [...rows[0].children].map(e => e.tagName + ' ' + e.scope),
    headings: rows.slice(1).map(row => row.children[0].tagName + ' ' + row.children[0].scope),
    captions: [...document.querySelectorAll('table')].every(e => e.caption.textContent.length > 10),
    live: document.querySelector('[aria-live=polite]').textContent,
    facts: Object.fromEntries([...document.querySelectorAll('dd')].map(e => [e.id || 'part', e.textContent])),
    cells: [...rows[1].children].map(e => e.textContent)});
}, 20);
</script>)";

class SwarmPage : public testing::Test {
 protected:
  SwarmPage() {
    ::setenv("TROIKA_RUN_SECRET", net::Secret::random().to_hex().c_str(), /*overwrite=*/1);
    const auto secret = cluster::find_secret("swarm swarm", cluster::process_variable).secret;
    endpoint_.emplace(net::TcpOptions{.name = identity_.name(),
                                      .secret = secret.derive("collaborative run", ""),
                                      .listen = {{"127.0.0.1", 0}},
                                      .alias = swarm::kDoorName});
    net::act_on(*endpoint_, [this] { open(); });
    monitor_.emplace(folder_.path(),
                     fmt::format("swarm monitor --http 127.0.0.1:0 --peer 127.0.0.1:{}",
                                 endpoint_->addresses()[0].port));
    url_ = monitor_->word_behind("the page is at ");
  }
  ~SwarmPage() override {
    ::unsetenv("TROIKA_RUN_SECRET");
    net::act_on(*endpoint_, [this] {
      door_.reset();
      peer_.reset();
    });
  }

  void open() {
    peer_ = std::make_unique<swarm::Peer<double>>(
        *endpoint_, identity_,
        swarm::PeerOptions<double>{
            .run = "swarm",
            .target_batch = 12,
            .kinds = {{swarm::kContact, swarm::is_contact}, {swarm::kReport, swarm::is_report}}},
        swarm::PeerCallbacks<double>{
            .due = [](int64_t) {},
            .averaged = {},
            .state = []() -> std::shared_ptr<const std::string> { return nullptr; },
            .load = [](int64_t, const std::string&) {}});
    door_.emplace(*endpoint_, "swarm");
    constexpr swarm::WallTime kLife = std::chrono::minutes(5);
    peer_->directory().publish(
        swarm::kContact, "", 0, kLife,
        text_of(swarm::Contact{
            .addresses = {{kImage, 7}}, .schema = "s", .model = kScript, .target_batch = 12}));
    peer_->directory().publish(swarm::kReport, "", 0, kLife,
                               text_of(swarm::PeerReport{.version = kScript,
                                                         .steps = 3,
                                                         .samples = 36,
                                                         .loss = 1.25,
                                                         .loss_samples = 12,
                                                         .sent = 2048,
                                                         .received = 4096}));
  }

  // Returns what the monitor's server sends for a path, without the head.
  std::string get(const std::string& path) const {
    const auto colon = url_.rfind(':');
    auto attempt = net::try_connect("127.0.0.1", std::stoi(url_.substr(colon + 1)),
                                    Deadline::after(kPatience));
    const auto request = "GET " + path + " HTTP/1.1\r\n\r\n";
    std::string_view unsent = request;
    std::string reason, text;
    EXPECT_TRUE(net::send_some(attempt.socket.get(), unsent, reason));
    while (net::wait_for(attempt.socket.get(), POLLIN, Deadline::after(kPatience)) &&
           net::receive(attempt.socket.get(), text, reason)) {
    }
    return text.substr(std::min(text.size(), text.find("\r\n\r\n") + 4));
  }
  // The page after its scripts have run.
  std::string browse(const std::string& url, int width, bool dark) const {
    // Without a sandbox, for root in a container.
    const auto outcome = testing_support::run_program(
        fmt::format("cd {} && HOME=$PWD exec chromium-headless-shell --no-sandbox --disable-gpu "
                    "--disable-dev-shm-usage --hide-scrollbars --user-data-dir=browser "
                    "--blink-settings=preferredColorScheme={} --window-size={},2000 "
                    "--virtual-time-budget=1500 --dump-dom {}",
                    folder_.path().string(), dark ? 0 : 1, width, url));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }
  // Returns what kSurveyOfTable finds in a copy of the page, with these numbers.
  json survey(const std::string& page, const std::string& numbers, int width, bool dark) const {
    const net::HttpServer copy({"127.0.0.1", 0}, [&](const std::string& path) -> net::HttpReply {
      if (path == "/")
        return {.type = "text/html", .body = page, .policy = "default-src * 'unsafe-inline'"};
      return {.type = "application/json", .body = numbers};
    });
    const auto shown =
        browse(fmt::format("http://127.0.0.1:{}/", copy.address().port), width, dark);
    const auto begin = shown.find("<title>") + 7;
    return json::parse(shown.substr(begin, shown.find("</title>") - begin));
  }

  const TemporaryFolder folder_;
  const swarm::Identity identity_ = swarm::Identity::random();
  std::optional<net::TcpEndpoint> endpoint_;
  std::unique_ptr<swarm::Peer<double>> peer_;
  std::optional<swarm::Door> door_;
  std::optional<Process> monitor_;
  std::string url_;
};

TEST_F(SwarmPage, TakesTextsOfPeersForTexts) {
  // The record may come after the first one.
  while (get("/numbers.json").find("onerror") == std::string::npos) {
  }
  const auto numbers = json::parse(get("/numbers.json"));
  ASSERT_EQ(numbers["peers"].size(), 1U);
  EXPECT_EQ(numbers["peers"][0]["version"], kScript);
  const auto shown = browse(url_, 800, /*dark=*/false);
  EXPECT_THAT(shown, HasSubstr("<title>Swarm swarm – Troika</title>"));
  EXPECT_THAT(
      shown,
      HasSubstr(
          "<td data-name=\"version\">&lt;script&gt;document.title='hit'&lt;/script&gt;</td>"));
  EXPECT_THAT(shown, HasSubstr("&lt;img src=x onerror"));
  EXPECT_THAT(shown, Not(HasSubstr("<img")));
  EXPECT_THAT(shown, HasSubstr("1 peers take part."));
}

TEST_F(SwarmPage, HasTheNumbersOfTheTerminal) {
  Process once(folder_.path(), fmt::format("swarm monitor --once --peer 127.0.0.1:{}",
                                           endpoint_->addresses()[0].port));
  ASSERT_EQ(once.wait(), 0) << once.text();
  const auto& text = once.text();
  EXPECT_THAT(
      text,
      HasSubstr("swarm swarm: 1 peers, step 0, 0 of 12 samples, 0.0 samples/s, loss 1.2500\n"));
  EXPECT_THAT(
      text,
      HasSubstr(identity_.name().substr(0, 8) +
                "       0        0        0.0    0 %    100 %  100 %    1.2500  node    equal   "));
  EXPECT_THAT(text, HasSubstr("<img src=x onerror=document.title=1>?[2J:7\n"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  Process two(folder_.path(), "swarm monitor --once --http 127.0.0.1:0 --peer 127.0.0.1:1");
  EXPECT_EQ(two.wait(), 2);
  Process none(folder_.path(), fmt::format("swarm monitor --http here:0 --peer 127.0.0.1:{}",
                                           endpoint_->addresses()[0].port));
  EXPECT_EQ(none.wait(), 2);
  EXPECT_THAT(none.text(), HasSubstr("cannot serve pages at port 0 of here; got "));
  monitor_->stop();
  EXPECT_EQ(monitor_->wait(), 0) << monitor_->text();
}

TEST_F(SwarmPage, IsReadableInAllWindows) {
  // Fetched first, because browse() ends the other children of this process.
  auto numbers = json::parse(get("/numbers.json"));
  const auto page = get("/") + kSurveyOfTable;
  EXPECT_THAT(page, HasSubstr("<script nonce="));
  auto& peer = numbers["peers"][0];
  peer["version"] = "0.2.0";
  peer["address"] = "[2001:0db8:85a3:0000:0000:8a2e:0370:7334]:65535";
  peer["loss"] = 1.25;
  peer["contributed_samples"] = 36;
  peer["sent_bytes"] = 2048;
  numbers["step"] = 12345;
  numbers["loss"] = nullptr;
  numbers["banned"] = {{{"key", std::string(64, 'a')}, {"accusers", 3}}};
  for (const bool is_phone : {true, false}) {
    const bool dark = !is_phone;
    const int width = is_phone ? 400 : 1400;
    const auto found = survey(page, numbers.dump(), width, dark);
    EXPECT_EQ(found["window"], width);
    EXPECT_LE(found["width"], width);
    EXPECT_EQ(found["clipped"], 0);
    EXPECT_EQ(found["dark"], dark);
    EXPECT_EQ(found["page"], dark ? "rgb(22, 22, 22)" : "rgb(255, 255, 255)");
    EXPECT_EQ(found["text"], dark ? "rgb(232, 232, 232)" : "rgb(26, 26, 26)");
    EXPECT_THAT(found["columns"], testing::Each("TH col"));
    EXPECT_THAT(found["headings"], testing::Each("TH row"));
    EXPECT_EQ(found["captions"], true);
    EXPECT_EQ(found["live"], "1 peers take part.");
    EXPECT_EQ(found["facts"]["step"], "12345");
    EXPECT_EQ(found["facts"]["loss"], "–");
    EXPECT_EQ(found["facts"]["count"], "1");
    EXPECT_EQ(found["facts"]["banned_count"], "1");
    for (const char* cell : {"36", "2.0 KiB", "1.2500", "0.2.0"}) {
      EXPECT_THAT(found["cells"], testing::Contains(cell));
    }
  }
}

}  // namespace
}  // namespace troika
