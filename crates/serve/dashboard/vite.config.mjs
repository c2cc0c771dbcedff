// Builds what the service embeds: names without hashes, as Rust names them, and nothing inline, as the
// page's policy allows no inline script or style.
import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  build: {
    outDir: process.env.DASHBOARD_OUT ?? "built",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: false,
    rollupOptions: {
      output: {
        entryFileNames: "dashboard/app.js",
        chunkFileNames: "dashboard/[name].js",
        assetFileNames: "dashboard/app[extname]",
      },
    },
  },
  server: {
    // `npm run dev` beside a service that runs.
    proxy: Object.fromEntries(["/v1", "/dashboard/session", "/dashboard/cages"].map((path) => [path, process.env.IRONCAGE_URL ?? "http://127.0.0.1:7421"])),
  },
});
