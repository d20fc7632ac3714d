// The page in a real Firefox: node firefox.cjs EXECUTABLE URL SHOT. Prints what it saw as JSON.
const puppeteer = require("puppeteer-core");

async function main(executablePath, url, shot) {
  const browser = await puppeteer.launch({ browser: "firefox", executablePath, headless: true });
  const seen = { faults: [] };
  try {
    const page = await browser.newPage();
    page.on("console", (message) => message.type() === "error" && seen.faults.push(message.text()));
    page.on("pageerror", (error) => seen.faults.push(String(error)));
    await page.setViewport({ width: 1280, height: 720 });
    await page.goto(url);
    await page.waitForSelector("#backends tbody tr");
    await page.waitForSelector("[data-feed=live]");
    seen.sentence = await page.$eval(".sentence", (node) => node.textContent);
    await new Promise((go) => setTimeout(go, 3000));
    await page.screenshot({ path: shot });
    seen.charts = await page.$$eval(".chart canvas", (all) => all.length);
    seen.tall = await page.evaluate(() => document.documentElement.scrollHeight);
    await page.click("#backends tbody tr:last-child .change");
    await page.click("#change-confirm");
    await page.waitForSelector("#backends tbody tr[data-tone=drain]");
    seen.toast = await page.$eval("#toast", (node) => node.textContent);
    seen.violations = await page.evaluate(() => window.violations ?? []);
  } finally {
    await browser.close();
  }
  console.log(JSON.stringify(seen));
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
