from penstock.proxy.commands.cli import main

raise SystemExit(main())
